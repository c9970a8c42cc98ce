"""Read by Python at its start, in the programs that tests run: hides libraries that Keras imports where it finds them.

They take a third of the start of such a program, and none of ours needs them (Grain is there as it warns where it finds
no JAX). With Keras on JAX, JAX and Grain stay; in `environment_of_a_user` nothing is hidden.
"""

import os
import sys

hidden = ["matplotlib.pyplot", "pandas", "sklearn"]
if os.environ.get("KERAS_BACKEND") != "jax":
    hidden += ["grain", "jax"]
sys.modules.update(dict.fromkeys(hidden))
