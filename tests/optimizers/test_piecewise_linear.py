"""The original's learning-rate rule, beside the original's own function."""

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import PiecewiseLinear


def original_factor(step, schedule):
    """`piecewise_linear` of bert4keras, in float64."""
    points = sorted(schedule.items())
    if points[0][0] != 0:
        points = [(0, 0.0), *points]
    return np.interp(step, *zip(*points, strict=True))


CASES = {
    "train.py": {20000: 1.0},
    "warm-up and fall": {2: 1.0, 5: 0.1},
    "from a factor": {0: 0.5, 10: 1.0},
    "constant": {0: 1.0},
    "not sorted": {30: 0.0, 10: 2.0, 20: 0.3},
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula(name):
    factors = CASES[name]
    steps = np.unique([0, 1, 2, 3, 4, 5, 6, 15, 29, 31, 10000, 19999, 20000, 10**6])
    schedule = PiecewiseLinear(1e-3, factors)
    ours = [float(schedule(step)) for step in steps]
    # float32: a few roundings of the largest factor, 2
    np.testing.assert_allclose(ours, 1e-3 * original_factor(steps, factors), atol=5e-10)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(schedule(steps)), ours, rtol=1e-6)


@pytest.mark.oracle
def test_equals_the_original(original, rng):
    for schedule in [
        *CASES.values(),
        {int(s): float(rng.random()) for s in rng.integers(50, size=4)},
    ]:
        steps = [*range(0, 60), *rng.integers(0, 30000, size=10)]
        expected = original.piecewise_linear(steps, schedule)
        ours = [float(PiecewiseLinear(1.0, schedule)(step)) for step in steps]
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)  # float32 both
        np.testing.assert_allclose(original_factor(steps, schedule), expected, atol=1e-6)


def test_config_survives_json():
    schedule = PiecewiseLinear(1e-5, {5: 0.1, 2: 1.0})
    assert schedule.get_config() == {"learning_rate": 1e-5, "factors": {2: 1.0, 5: 0.1}}
    text = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(text)
    assert again.get_config() == schedule.get_config()
    assert PiecewiseLinear(1e-5, {"2": 1.0, "5": 0.1}).get_config() == schedule.get_config()


@pytest.mark.parametrize(
    "factors", [{}, None, {-1: 1.0}, {2.5: 1.0}, {"soon": 1.0}, [(0, 1.0)], {5: "high"}]
)
def test_refuses_other_factors(factors):
    with pytest.raises(ValueError, match="`factors` must be a dict from steps"):
        PiecewiseLinear(1e-3, factors)
