"""The harness that `test_every_layer.py` runs every layer through, on any Keras backend.

A `Case` is a layer, its inputs, and the same computation in float64 NumPy.
"""

import dataclasses
import gc
import zlib
from collections.abc import Callable
from unittest import mock

import keras
import numpy as np
from keras import ops

from roformer_tf import rotary
from tests.oracles import numpy_roformer


@dataclasses.dataclass
class Case:
    """A layer to test.

    Attributes:
        name: Name of the case.
        make: `make(dtype=...)` returns the layer.
        inputs: Dict of call arguments: arrays or structures of arrays.
        oracle: `oracle(weights, **inputs)` returns the expected output in float64. `weights` holds
            float64 arrays by path below the layer, such as `"attention/qkv/kernel"`.
        constants: Dict of call arguments that are not tensors.
        noise: Allowed error in float32, as a share of the output's largest value.
        roundings: Number of successive roundings to the compute dtype from input to output.
        output_dtype: Dtype of the output under every policy, or `None` for the compute dtype.
        rounds: Whether float32 outputs come from numbers in the compute dtype.
    """

    name: str
    make: Callable
    inputs: dict
    oracle: Callable
    constants: dict = dataclasses.field(default_factory=dict)
    noise: float = 1e-6
    roundings: int = 4
    output_dtype: str | None = None
    rounds: bool = False

    def __str__(self):
        return self.name

    def layer(self, dtype="float32", **kwargs):
        """Builds the layer with random weights that no dtype or backend changes."""
        layer = self.make(dtype=dtype, **kwargs)
        symbols = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, dtype=x.dtype.name), self.inputs
        )
        layer(**symbols, **self.constants)  # builds without computing
        randomize(layer, self.name)
        return layer

    def expected(self, layer):
        """Returns the oracle's outputs for the layer's weights."""
        return flat(self.oracle(weights_by_path(layer), **self.inputs))


def rotary_tables(positions, size, theta=None):
    """Returns the output of `RotaryPosition(size)` at positions (b, t): float64 (b, 1, t, size).

    With other frequencies `theta`, which may be fewer, (b, 1, t, 2 * len(theta)).
    """
    if theta is None:
        theta = 10000.0 ** (-2 * np.arange(size // 2) / size)
    angle = np.asarray(positions, "float64")[:, None, :, None] * theta
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([cos, cos], -1), np.concatenate([-sin, sin], -1)


def rotary_context(*arguments):
    """Returns `rotary_tables` in float32."""
    return tuple(table.astype("float32") for table in rotary_tables(*arguments))


def weights_by_path(layer):
    """Returns all weights as float64 arrays, by path below the layer."""
    return {
        path: numpy(weight.value).astype("float64") for path, weight in variables(layer).items()
    }


def variables(layer):
    """Returns the weights by path, layer names joined by slashes. Lists shared weights once."""
    found, seen = {}, set()

    def visit(node, path):
        for weight in node._trainable_variables + node._non_trainable_variables:
            if "seed" not in weight.name and id(weight) not in seen:
                seen.add(id(weight))
                found[f"{path}{weight.name}"] = weight
        for child in node._layers:
            visit(child, f"{path}{child.name}/")

    visit(layer, "")
    return found


def randomize(model, seed="weights"):
    """Sets random weights, seeded by each weight's path: the same on every backend."""
    for path, weight in variables(model).items():
        rng = np.random.default_rng(zlib.crc32(f"{seed} {path}".encode()))
        noise = rng.normal(size=weight.shape)
        if weight.name == "kernel":
            noise = 1.2 * noise / np.sqrt(weight.shape[0])
        elif weight.name == "gamma":
            noise = 1 + 0.2 * noise
        elif weight.name != "embeddings":
            noise = 0.2 * noise
        weight.assign(noise.astype("float32"))


def built(layer, shape=None, seed="weights"):
    """Builds the layer for inputs of a shape, sets random weights, and returns it."""
    layer.build(shape)
    randomize(layer, seed)
    return layer


def numpy(x):
    """Converts to a NumPy array; bfloat16 becomes float32."""
    if ops.is_tensor(x) or isinstance(x, keras.Variable):
        if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
            x = ops.cast(x, "float32")
        return ops.convert_to_numpy(x)
    return np.asarray(x)


def flat(outputs):
    """Flattens a structure of tensors to a list of NumPy arrays."""
    return [numpy(x) for x in keras.tree.flatten(outputs)]


def assert_equal(found, expected, **tolerance):
    """Checks that two structures hold the same arrays, up to `rtol` and `atol` if they are given."""
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 0, **tolerance})


def assert_close(outputs, expected, share, context=""):
    """Checks that each array's error is at most `share` of its largest value (at least 1)."""
    assert len(outputs) == len(expected)
    for i, (output, want) in enumerate(zip(outputs, expected, strict=True)):
        assert np.shape(output) == np.shape(want), (np.shape(output), np.shape(want))
        output, want = np.asarray(output, "float64"), np.asarray(want, "float64")
        size = max(1.0, np.abs(want).max(initial=0))
        error = np.abs(output - want)
        assert np.isfinite(error).all(), f"{context}: output {i} has NaN or infinite numbers"
        assert error.max(initial=0) <= share * size, (
            f"{context}: output {i} is off by {error.max():.3g}, allowed {share * size:.3g}"
        )


def check_keras_mask(call, width, atol):
    """Checks that the mask that Keras carries along hides padding: `call` maps vectors to vectors."""
    inputs = keras.Input((None,), dtype="int32")
    x = call(keras.layers.Embedding(10, width, mask_zero=True)(inputs))
    model = one_program(keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(x)))
    short, padded = model(np.array([[3, 4]])), model(np.array([[3, 4, 0, 0]]))
    np.testing.assert_allclose(numpy(short), numpy(padded), atol=atol)


def gradients(function, inputs, cotangents, layer=None):
    """Computes `function(*inputs)` and the gradients of <cotangents, outputs>.

    Args:
        function: Takes tensors.
        inputs: List of float arrays.
        cotangents: Array, or structure of arrays, like the outputs.
        layer: Layer whose `trainable_variables` follow the inputs, or `None`.

    Returns:
        List of output arrays and list of gradient arrays.
    """
    weights = layer.trainable_variables if layer is not None else []

    def loss_of(outputs):
        pairs = zip(keras.tree.flatten(outputs), keras.tree.flatten(cotangents), strict=True)
        return sum(ops.sum(ops.cast(o, "float32") * ops.cast(c, "float32")) for o, c in pairs)

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        inputs = [tf.convert_to_tensor(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
            loss = loss_of(outputs)
        found = tape.gradient(loss, inputs + [w.value for w in weights])
    elif backend == "jax":
        import jax

        def loss_and_outputs(inputs, values):
            with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
                outputs = function(*inputs)
            return loss_of(outputs), outputs

        inputs = [jax.numpy.asarray(x) for x in inputs]
        differentiate = jax.jit(jax.value_and_grad(loss_and_outputs, argnums=(0, 1), has_aux=True))
        (_, outputs), (of_inputs, of_weights) = differentiate(inputs, [w.value for w in weights])
        found = [*of_inputs, *of_weights]
    else:
        import torch

        inputs = [ops.convert_to_tensor(x).detach().clone().requires_grad_() for x in inputs]
        for weight in weights:
            weight.value.grad = None
        outputs = function(*inputs)
        loss = loss_of(outputs)
        if loss.requires_grad:  # a mask has no gradient
            loss.backward()
        found = [x.grad for x in inputs] + [w.value.grad for w in weights]
        outputs = keras.tree.map_structure(torch.Tensor.detach, outputs)
    zeros = [np.zeros_like(numpy(x)) for x in [*inputs, *(w.value for w in weights)]]
    return flat(outputs), [
        zero if g is None else numpy(g) for g, zero in zip(found, zeros, strict=True)
    ]


def compiled(function):
    """Compiles with XLA on TensorFlow and JAX; returns `function` itself on PyTorch."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def one_program(function, *static):
    """Compiles a function on JAX, where a program for each operation takes five times as long.

    Elsewhere it returns `function` itself. The arguments that `static` names are no tensors.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function, static_argnames=static)
    return function


def quantized(model):
    """Quantizes the model to int8. Frozen objects spare Keras a garbage search after each layer."""
    gc.collect()
    gc.freeze()
    model.quantize("int8")
    return model


def slope_at_zero(loss):
    """Returns the slope of `loss(step)` at 0, a central difference of float64 oracles.

    The difference must not step over the kink of a ReLU, where there is no derivative.
    """
    signs = []

    def relu(x):
        signs.append(x > 0)
        return np.maximum(x, 0)

    def loss_and_signs(step):
        signs.clear()
        return loss(step), np.concatenate([*map(np.ravel, signs), []])

    with mock.patch.dict(numpy_roformer.ACTIVATIONS, relu=relu):
        for step in (1e-5, 1e-6, 1e-7, 1e-8):
            (after, signs_after), (before, signs_before) = map(loss_and_signs, (step, -step))
            if (signs_after == signs_before).all():
                break
    return (after - before) / (2 * step)


def float_inputs(inputs):
    """Returns the names of the float inputs."""
    return [k for k, v in inputs.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]


def original_variables(weights, head_dim, layer=0):
    """Renames weights of an `EncoderBlock` or `SelfAttention` to those of an original checkpoint.

    Our layers use the half layout; the oracle computes with these in the interleaved layout.
    """
    names = {
        "output_dense": "attention/output/dense",
        "attention/output_dense": "attention/output/dense",
        "attention_norm": "attention/output/LayerNorm",
        "feed_forward/intermediate_dense": "intermediate/dense",
        "feed_forward/output_dense": "output/dense",
        "feed_forward_norm": "output/LayerNorm",
    }
    variables = {}
    for path, value in weights.items():
        path, kind = path.rsplit("/", 1)
        if path.endswith("qkv"):
            for name, part in zip(
                ("query", "key", "value"), np.split(value, 3, axis=-1), strict=True
            ):
                if name != "value":
                    heads = part.reshape(*part.shape[:-1], -1, head_dim)
                    part = heads[..., rotary.half_to_interleaved(head_dim)].reshape(part.shape)
                variables[f"bert/encoder/layer_{layer}/attention/self/{name}/{kind}"] = part
        else:
            variables[f"bert/encoder/layer_{layer}/{names[path]}/{kind}"] = value
    return variables
