"""Read by Python at its start, in the programs that tests run: hides libraries that Keras imports where it finds them.

They take a third of the start of such a program, and none of ours needs them (Grain is there as it warns where it finds
no JAX). With Keras on JAX nothing is hidden, nor in `environment_of_a_user`.
"""

import os
import sys

if os.environ.get("KERAS_BACKEND") != "jax":
    sys.modules.update(dict.fromkeys(["grain", "jax", "matplotlib.pyplot", "pandas", "sklearn"]))
