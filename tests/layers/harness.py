"""What every layer must pass, on whatever backend Keras runs: see `test_every_layer.py`.

A `Case` is a layer, its inputs, and the same computation in float64 NumPy.
"""

import dataclasses
import gc
import zlib
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from roformer_tf import rotary


@dataclasses.dataclass
class Case:
    """One layer to be tested.

    Attributes:
        name: of the case.
        make: `make(dtype=...)` returns the layer.
        inputs: the arrays (or structures of arrays) of the layer's call, by argument.
        oracle: `oracle(weights, **inputs)`, the expected output in float64; `weights` are float64 arrays by path
            below the layer, such as `"attention/qkv/kernel"`.
        constants: arguments of the call that are no tensors.
        noise: allowed distance from the oracle in float32, as a share of the output's largest value.
        roundings: how many roundings to the compute dtype in a row lie between input and output.
    """

    name: str
    make: Callable
    inputs: dict
    oracle: Callable
    constants: dict = dataclasses.field(default_factory=dict)
    noise: float = 1e-6
    roundings: int = 4
    output_dtype: str | None = None

    def __str__(self):
        return self.name

    def layer(self, dtype="float32", **kwargs):
        """The layer, built, with random weights: the same for every dtype and on every backend."""
        layer = self.make(dtype=dtype, **kwargs)
        symbols = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, dtype=x.dtype.name), self.inputs
        )
        layer(**symbols, **self.constants)  # builds it, and computes nothing
        randomize(layer, self.name)
        return layer

    def expected(self, layer):
        """The oracle's outputs, with the layer's own weights."""
        return flat(self.oracle(weights_by_path(layer), **self.inputs))


def weights_by_path(layer):
    """Float64 arrays of all weights, by their path below the layer."""
    return {
        path: numpy(weight.value).astype("float64") for path, weight in variables(layer).items()
    }


def variables(layer):
    """The layer's weights by path below it: layers' names, joined by slashes. A shared weight comes once."""
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
    """Random weights far from any initial value, drawn from the weights' own paths: alike on every backend."""
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


def numpy(x):
    """A NumPy array of the same numbers; bfloat16 becomes float32."""
    if ops.is_tensor(x) or isinstance(x, keras.Variable):
        if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
            x = ops.cast(x, "float32")
        return ops.convert_to_numpy(x)
    return np.asarray(x)


def flat(outputs):
    """A list of NumPy arrays, from any structure of tensors."""
    return [numpy(x) for x in keras.tree.flatten(outputs)]


def assert_close(outputs, expected, share, context=""):
    """Every array within `share` of its own largest value (of 1 at least)."""
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


def gradients(function, inputs, cotangents, layer=None):
    """Outputs of `function(*inputs)`, and the gradients of <cotangents, outputs> by inputs and by weights.

    Args:
        function: of tensors.
        inputs: list of float arrays.
        cotangents: array, or structure of them, like the outputs.
        layer: whose trainable weights come after the inputs, in the order of `trainable_variables`.

    Returns:
        List of output arrays, list of gradient arrays.
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
        if loss.requires_grad:  # a mask depends on nothing that has a gradient
            loss.backward()
        found = [x.grad for x in inputs] + [w.value.grad for w in weights]
        outputs = keras.tree.map_structure(torch.Tensor.detach, outputs)
    zeros = [numpy(x) * 0 for x in [*inputs, *(w.value for w in weights)]]
    return flat(outputs), [
        zero if g is None else numpy(g) for g, zero in zip(found, zeros, strict=True)
    ]


def compiled(function):
    """`function` as the backend's compiler makes it: XLA on TensorFlow and JAX, itself on PyTorch."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def quantized(model):
    """The model in int8. Keras searches for garbage after each layer it quantizes: not in what is there already."""
    gc.collect()
    gc.freeze()
    model.quantize("int8")
    return model


def float_inputs(inputs):
    """Names of the inputs that gradients flow to."""
    return [k for k, v in inputs.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]


def original_variables(weights, prefix="", layer=0, head_dim=None):
    """The weights of an `EncoderBlock` or `SelfAttention` as the variables of an original checkpoint.

    What our layers compute in the half layout, the oracle computes from these in the interleaved one.
    """
    names = {
        f"{prefix}output_dense": "attention/output/dense",
        f"{prefix}attention/output_dense": "attention/output/dense",
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
