"""Checks every layer: float64 values and gradients, configurations, files, dtypes, graphs, XLA."""

import keras
import numpy as np
import pytest

from tests.layers.cases import CASES
from tests.layers.harness import (
    assert_close,
    assert_equal,
    compiled,
    flat,
    float_inputs,
    gradients,
    slope_at_zero,
    variables,
    weights_by_path,
)

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)
# Largest relative error of one rounding to nearest.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def test_values_and_gradients(case, rng):
    """Compares values with the float64 oracle, and gradients with its finite differences."""
    layer = case.layer()
    names = float_inputs(case.inputs)
    names = [n for n in names if not n.endswith("_bias") and n != "position_ids"]
    weights = weights_by_path(layer)
    paths = {id(weight): path for path, weight in variables(layer).items()}
    expected = case.expected(layer)
    cotangents = [rng.normal(size=np.shape(x)) for x in expected]

    def function(*inputs):
        return layer(**{**case.inputs, **dict(zip(names, inputs, strict=True))}, **case.constants)

    inputs = [case.inputs[name] for name in names]
    outputs, found = gradients(function, inputs, cotangents, layer)
    # float32 rounds each number by 6e-8 of its size, and a sum of 16 of them by a few times that
    assert_close(outputs, expected, case.noise, case.name)
    assert len(found) == len(names) + len(layer.trainable_variables)

    def oracle_loss(point):
        changed = {name: point[name] for name in names}
        given = {path: point[path] for path in weights}
        outputs = flat(case.oracle(given, **{**case.inputs, **changed}))
        return sum((o * c).sum() for o, c in zip(outputs, cotangents, strict=True))

    point = {**weights, **{name: case.inputs[name].astype("float64") for name in names}}
    keys = names + [paths[id(weight)] for weight in layer.trainable_variables]
    for key, gradient in zip(keys, found, strict=True):
        direction = rng.normal(size=np.shape(point[key]))

        def moved_loss(step, key=key, direction=direction):
            return oracle_loss({**point, key: point[key] + step * direction})

        numeric = slope_at_zero(moved_loss)
        size = np.linalg.norm(gradient) + 1
        assert abs((gradient * direction).sum() - numeric) < 1e-5 * size, f"{case.name}: {key}"


def test_config_and_file(case, tmp_path):
    """A config and a `.keras` file of a functional model give a layer with the same outputs."""
    layer = case.layer(dtype=keras.DTypePolicy("float32"))
    expected = flat(layer(**case.inputs, **case.constants))
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again(**case.inputs, **case.constants)
    again.set_weights(layer.get_weights())
    assert_equal(again(**case.inputs, **case.constants), expected)

    inputs = keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=x.dtype.name), case.inputs
    )
    outputs = layer(**inputs, **case.constants)
    model = keras.Model(keras.tree.flatten(inputs), outputs)
    given = keras.tree.flatten(case.inputs)
    for tensor, output in zip(keras.tree.flatten(outputs), expected, strict=True):
        # symbols have the true shape, with None or 1 for the batch
        assert tensor.shape[1:] == output.shape[1:]
        assert tensor.shape[0] in (None, output.shape[0])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal(loaded(given), model(given))


def test_mixed_precision(case):
    for compute_dtype in ("float16", "bfloat16"):
        layer = case.layer(dtype=f"mixed_{compute_dtype}")
        outputs = layer(**case.inputs, **case.constants)
        for output in keras.tree.flatten(outputs):
            found = keras.backend.standardize_dtype(output.dtype)
            assert found == (case.output_dtype or compute_dtype)
        for weight in layer.weights:  # counters are integers
            assert keras.backend.standardize_dtype(weight.dtype) in ("float32", "int32")
        # inputs, weights and intermediate results are rounded once; float32 stays within its noise
        is_exact = case.output_dtype and not case.rounds
        share = case.noise if is_exact else case.roundings * ROUNDING[compute_dtype]
        assert_close(flat(outputs), case.expected(layer), share, f"{case.name}: {compute_dtype}")


def test_compiled(case):
    """A graph and XLA give what eager execution gives. One program holds two dtypes."""
    # XLA may fuse a product and a sum, or keep float32 where eager execution rounds in between
    shares = {"float32": case.noise, "mixed_float16": case.roundings * ROUNDING["float16"]}
    layers = [case.layer(dtype=dtype) for dtype in shares]

    def call(inputs):
        return [layer(**inputs, **case.constants) for layer in layers]

    def check(outputs, kind):
        for output, want, (dtype, share) in zip(outputs, expected, shares.items(), strict=True):
            assert_close(flat(output), want, share, f"{case.name} as {kind} in {dtype}")

    expected = [flat(outputs) for outputs in call(case.inputs)]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        call = tf.function(call)  # XLA compiles this very graph
        check(call(case.inputs), "graph")
    check(compiled(call)(case.inputs), "compiled")
