import json
import math

import keras
import numpy as np
import pytest

from roformer_tf.layers import FeedForward, gelu, gelu_tanh, get_activation
from tests.layers.harness import gradients, numpy
from tests.oracles import numpy_roformer as oracle

X = np.concatenate([np.linspace(-12, 12, 4801), [0.0, 1e-30, -1e-30, 50.0, -50.0]]).astype("f4")


def test_gelu_is_the_exact_one():
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X.astype("float64")]
    # where erf is near -1, two last places of it (1.2e-7) times |x| / 2 are lost: 6e-7 near -5.3
    np.testing.assert_allclose(numpy(gelu(X)), expected, rtol=2e-7, atol=1e-6)
    stock = keras.activations.gelu(X, approximate=False)
    np.testing.assert_allclose(numpy(gelu(X)), numpy(stock), rtol=2e-7, atol=1e-6)


def test_gelu_tanh():
    np.testing.assert_allclose(numpy(gelu_tanh(X)), oracle.gelu_tanh(X), rtol=2e-7, atol=1e-6)
    assert np.abs(numpy(gelu_tanh(X)) - numpy(gelu(X))).max() > 4e-4  # they do differ


@pytest.mark.parametrize("function", [gelu, gelu_tanh])
def test_gradient(function):
    _, (gradient,) = gradients(function, [X], np.ones_like(X))
    exact = oracle.gelu_erf if function is gelu else oracle.gelu_tanh
    step = 1e-5
    x = X.astype("float64")
    numeric = (exact(x + step) - exact(x - step)) / (2 * step)
    # TensorFlow's tanh is exactly -1 below -4.9, where the true gradient is some 4e-6 yet
    np.testing.assert_allclose(gradient, numeric, atol=6e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype_is_kept(dtype):
    x = keras.ops.convert_to_tensor(X, dtype=dtype)
    result = gelu(x)
    assert keras.backend.standardize_dtype(result.dtype) == dtype
    # four roundings to the dtype on numbers of size |x|
    allowed = 4 * {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype] * np.abs(X) + 1e-6
    exact = oracle.gelu_erf(numpy(keras.ops.cast(x, "float32")))
    assert (np.abs(numpy(keras.ops.cast(result, "float32")) - exact) <= allowed).all()


@pytest.mark.tensorflow("looks at a TensorFlow graph")
def test_graph_has_no_erfc():
    """The ONNX converter does not know `Erfc`, which the GELU of Keras emits."""
    import tensorflow as tf

    def operations(function):
        graph = tf.function(function).get_concrete_function(tf.TensorSpec([1, 5, 8])).graph
        nested = [f.graph for f in graph._functions.values() if hasattr(f, "graph")]
        return {op.type for g in [graph, *nested] for op in g.get_operations()}

    ours = operations(FeedForward(8, 16))
    assert "Erf" in ours and "Erfc" not in ours
    stock = operations(lambda x: keras.activations.gelu(x, approximate=False))
    assert "Erfc" in stock, "Keras no longer emits Erfc: `layers.gelu` may give way to its own"


def test_names():
    assert get_activation("gelu") is gelu
    assert get_activation("gelu_tanh") is gelu_tanh
    assert get_activation("relu") is keras.activations.relu
    assert get_activation(None) is keras.activations.linear
    assert get_activation(math.tanh) is math.tanh
    with pytest.raises(ValueError, match="no_such_activation"):
        get_activation("no_such_activation")


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (keras.activations.silu, "silu"),
        (gelu, "gelu"),
        (keras.activations.gelu, None),  # "gelu" is ours
        (keras.layers.LeakyReLU(0.3), None),
    ],
)
def test_functions_and_layers_are_saved(activation, name):
    """Functions are kept by the names that they have in `bert_config.json`, if there are any."""
    config = json.dumps(keras.saving.serialize_keras_object(FeedForward(8, 16, activation)))
    loaded = keras.saving.deserialize_keras_object(json.loads(config))
    np.testing.assert_array_equal(numpy(loaded.activation(X)), numpy(activation(X)))
    if name is not None:
        assert loaded.activation is activation and loaded.get_config()["activation"] == name
