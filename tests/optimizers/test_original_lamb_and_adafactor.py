"""LAMB and AdaFactor of the release's scripts, beside bert4keras' own, step by step."""

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import OriginalAdaFactor, OriginalLAMB, PiecewiseLinear

# Names as in bert4keras -> ours. Both keep what has "Norm" or "bias" in its name from decay.
NAMES = {
    "Embedding-Token/embeddings": "token_embedding/embeddings",
    "Dense/kernel": "dense/kernel",
    "Dense/bias": "dense/bias",
    "Norm/gamma": "norm/gamma",
    "Square/kernel": "square/kernel",
}
SHAPES = [(12, 5), (5, 6), (6,), (6,), (4, 4)]
EXCLUDED = ["Norm", "bias"]
SCHEDULE = {3: 1.0, 8: 0.5, 20: 0.1}


def problem(rng):
    weights = {name: rng.normal(size=s).astype("float32") for name, s in zip(NAMES, SHAPES)}
    weights["Square/kernel"] *= 0  # whose norm is 0
    gradients = [
        {n: (10.0 ** rng.integers(-6, 1) * rng.normal(size=s)).astype("float32") for n, s in zip(NAMES, SHAPES)}
        for _ in range(12)
    ]  # fmt: skip
    return weights, gradients


def steps_of(optimizer, weights, gradients):
    variables = []
    for name, value in weights.items():
        scope, own = NAMES[name].split("/")
        with keras.name_scope(scope):
            variables.append(keras.Variable(value, name=own))
    found = []
    optimizer.build(variables)
    for row in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(row[name]) for name in weights])
        found.append([keras.ops.convert_to_numpy(v.value) for v in variables])
    return found


def assert_same(found, expected):
    # 12 steps in float32, each of which rounds by 6e-8, relative to weights of size 1 to 3
    for mine, row in zip(found, expected, strict=True):
        for one, (name, other) in zip(mine, row.items(), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.oracle
@pytest.mark.parametrize("k", [1, 3])
def test_lamb(original, rng, k):
    weights, gradients = problem(rng)
    extensions = ["weight_decay", "layer_adaptation", "piecewise_linear_lr"]
    options = {
        "learning_rate": 0.02,
        "bias_correction": False,
        "weight_decay_rate": 0.01,
        "exclude_from_weight_decay": EXCLUDED,
        "exclude_from_layer_adaptation": EXCLUDED,
        "lr_schedule": SCHEDULE,
    }
    if k > 1:
        extensions.append("gradient_accumulation")
        options["grad_accum_steps"] = k
    expected = original.optimize("Adam", extensions, options, weights, gradients)
    optimizer = OriginalLAMB(PiecewiseLinear(0.02, SCHEDULE), accumulation_steps=k)
    assert_same(steps_of(optimizer, weights, gradients), expected)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 5e-3, "beta_1": 0.9, "min_dim_size_to_factor": 10**6},
        {"learning_rate": 5e-3, "min_dim_size_to_factor": 4},
        {"learning_rate": None, "beta_1": 0.9, "min_dim_size_to_factor": 5},
        {"learning_rate": None, "multiply_by_parameter_scale": False, "clipping_threshold": None},
        {"learning_rate": 5e-3, "beta_2": 0.99, "no_scale": ["bias"]},
        {"learning_rate": 5e-3, "beta_1": 0.9, "accumulation_steps": 2},
    ],
    ids=["scripts", "factored", "relative", "absolute", "constant", "accumulated"],
)
def test_adafactor(original, rng, options):
    weights, gradients = problem(rng)
    names = {"beta_1": "beta1", "beta_2": "beta2", "no_scale": "exclude_from_parameter_scale"}
    theirs = {names.get(key, key): value for key, value in options.items()}
    extensions = []
    if "accumulation_steps" in theirs:
        extensions, theirs["grad_accum_steps"] = ["gradient_accumulation"], 2
        del theirs["accumulation_steps"]
    expected = original.optimize("AdaFactor", extensions, theirs, weights, gradients)
    assert_same(steps_of(OriginalAdaFactor(**options), weights, gradients), expected)
