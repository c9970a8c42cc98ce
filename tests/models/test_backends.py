"""JAX and PyTorch give the numbers of TensorFlow: layers, models, gradients, training, tokens.

`tests/test_rotary.py`, `tests/layers` and `tests/models/test_backbone.py` run on any backend, with
`KERAS_BACKEND=jax python -m pytest ...`. The test here compares the backends with each other.
"""

import importlib.util
import os
import sys

import numpy as np
import pytest

from tests.models.backend_results import all_results
from tests.processes import run_program

pytestmark = pytest.mark.tensorflow("compares other backends with TensorFlow")


@pytest.fixture(scope="module")
def reference():
    return all_results()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_gives_the_numbers_of_tensorflow(backend, reference, repository, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    file = tmp_path / "numbers.npz"
    command = sys.executable, "-m", "tests.models.backend_results", str(file)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    run_program(*command, env=environment, cwd=repository, timeout=600)
    numbers = dict(np.load(file))
    assert numbers.pop("backend") == backend
    assert numbers.keys() == reference.keys()
    worst = {}
    for name, expected in reference.items():
        group = name.split("/")[0]
        size = max(1.0, np.abs(expected).max(initial=0))
        error = np.abs(numbers[name].astype("float64") - expected).max(initial=0) / size
        if name.endswith("bfloat16") or "bfloat16/" in name:
            # each backend rounds to 8 bits where it likes: a dozen roundings of 2^-8
            allowed = 12 * 2.0**-8
        else:
            # both are some 2e-6 from float64; three steps of training carry it along
            allowed = 2e-5 if group.startswith("trained") else 5e-6
        worst[group] = max(worst.get(group, 0), error / allowed)
        assert error < allowed, f"{name}: {error:.2g} of its size, allowed {allowed:.2g}"
    print({group: round(float(share), 3) for group, share in worst.items()})
