"""What every layer passes: values and gradients of float64 NumPy, configurations, files, dtypes, graphs, XLA."""

import keras
import numpy as np
import pytest

from tests.layers.cases import CASES
from tests.layers.harness import (
    assert_close,
    compiled,
    flat,
    float_inputs,
    gradients,
    variables,
    weights_by_path,
)

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)
# Largest relative error of one rounding to nearest.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def test_equals_float64(case):
    layer = case.layer()
    outputs = flat(layer(**case.inputs, **case.constants))
    # float32 rounds each number by 6e-8 of its size, and sums of some 16 of them by a few times as much
    assert_close(outputs, case.expected(layer), case.noise, case.name)


def test_gradients_equal_finite_differences(case, rng):
    """<gradient, direction> by autodiff, and by differences of the float64 oracle along the direction."""
    layer = case.layer()
    names = float_inputs(case.inputs)
    names = [n for n in names if not n.endswith("_bias") and n != "position_ids"]
    weights = weights_by_path(layer)
    paths = {id(weight): path for path, weight in variables(layer).items()}
    cotangents = [rng.normal(size=np.shape(x)) for x in case.expected(layer)]

    def function(*inputs):
        return layer(**{**case.inputs, **dict(zip(names, inputs, strict=True))}, **case.constants)

    inputs = [case.inputs[name] for name in names]
    _, found = gradients(function, inputs, cotangents, layer)
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
        step = 1e-5
        ends = [oracle_loss({**point, key: point[key] + s * direction}) for s in (step, -step)]
        numeric = (ends[0] - ends[1]) / (2 * step)
        size = np.linalg.norm(gradient) + 1
        assert abs((gradient * direction).sum() - numeric) < 1e-5 * size, f"{case.name}: {key}"


def test_config_round_trip(case):
    layer = case.layer()
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again(**case.inputs, **case.constants)
    again.set_weights(layer.get_weights())
    for one, other in zip(
        flat(layer(**case.inputs, **case.constants)),
        flat(again(**case.inputs, **case.constants)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_save_and_load(case, tmp_path):
    """In a functional model, saved as one `.keras` file."""
    layer = case.layer()
    inputs = keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=x.dtype.name), case.inputs
    )
    outputs = layer(**inputs, **case.constants)
    model = keras.Model(keras.tree.flatten(inputs), outputs)
    given = keras.tree.flatten(case.inputs)
    for tensor, output in zip(
        keras.tree.flatten(outputs), flat(layer(**case.inputs, **case.constants)), strict=True
    ):
        # the shape inferred from symbols is the shape there is, with None or 1 for the batch
        assert tensor.shape[1:] == output.shape[1:]
        assert tensor.shape[0] in (None, output.shape[0])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(flat(model(given)), flat(loaded(given)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(case, dtype):
    layer = case.layer(dtype=dtype)
    compute_dtype = dtype.removeprefix("mixed_")
    outputs = layer(**case.inputs, **case.constants)
    for output in keras.tree.flatten(outputs):
        found = keras.backend.standardize_dtype(output.dtype)
        assert found == (case.output_dtype or compute_dtype)
    for weight in layer.weights:  # counters are integers
        assert keras.backend.standardize_dtype(weight.dtype) in ("float32", "int32")
    # inputs, weights and every result in between are rounded once; what stays in float32 is exact to its own noise
    share = case.noise if case.output_dtype else case.roundings * ROUNDING[compute_dtype]
    assert_close(flat(outputs), case.expected(layer), share, f"{case.name} in {dtype}")


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_compiled(case, dtype):
    """Graph and XLA give what eager execution gives."""
    layer = case.layer(dtype=dtype)

    def call(inputs):
        return layer(**inputs, **case.constants)

    expected = flat(call(case.inputs))
    # XLA may fuse a product and a sum, or keep float32 where eager execution rounds in between
    share = case.noise if dtype == "float32" else case.roundings * ROUNDING["float16"]
    if keras.backend.backend() == "tensorflow" and dtype == "float32":
        import tensorflow as tf

        call = tf.function(call)  # what XLA compiles is this very graph
        assert_close(flat(call(case.inputs)), expected, share, f"{case.name} as graph")
    assert_close(flat(compiled(call)(case.inputs)), expected, share, f"{case.name} compiled")
