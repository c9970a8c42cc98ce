"""`bert4keras.backend`: Keras, `K` and functions of tensors."""

import numpy as np  # noqa: F401
import tensorflow as tf
from keras.src.activations import ALL_OBJECTS_DICT as _ACTIVATIONS

import roformer_tf.compat.keras as keras
from roformer_tf import activations as _activations
from roformer_tf import layers as _layers
from roformer_tf.compat import is_tf_keras, names_not_offered  # noqa: F401
from roformer_tf.compat.keras import backend as K  # noqa: N812
from roformer_tf.compat.keras.backend import on_any_tensor, symbolic  # noqa: F401
from roformer_tf.optimizers import PiecewiseLinear

multilabel_categorical_crossentropy = on_any_tensor(_layers.multilabel_categorical_crossentropy)
sparse_multilabel_categorical_crossentropy = on_any_tensor(
    _layers.sparse_multilabel_categorical_crossentropy
)
gelu_erf, gelu_tanh = _activations.gelu, _activations.gelu_tanh
swish = keras.activations.silu
# by name, as in `Dense(activation="gelu_tanh")`
_ACTIVATIONS.update(gelu_erf=gelu_erf, gelu_tanh=gelu_tanh)


def get_available_gpus():
    """Returns the names of the GPUs."""
    return [f"/device:GPU:{i}" for i, _ in enumerate(tf.config.list_logical_devices("GPU"))]


def piecewise_linear(t, schedule, from_zero=True):
    """Returns the factor at step `t`; see `roformer_tf.optimizers.PiecewiseLinear`.

    >>> round(float(piecewise_linear(1500, {1000: 1, 2000: 0.1})), 4)
    0.55
    """
    first, *_ = sorted(schedule)
    points = schedule if from_zero else {0: schedule[first], **schedule}
    return PiecewiseLinear(1.0, points)(t)


@on_any_tensor
def root_mean_square(x, axis=None, keepdims=False):
    """Returns the root of the mean of the squares."""
    return tf.sqrt(tf.reduce_mean(tf.square(x), axis=axis, keepdims=keepdims))


@on_any_tensor
def leaky_relu(x, alpha=0.2):
    """Returns x where it is positive, elsewhere `alpha` times x."""
    return tf.nn.leaky_relu(x, alpha)


@on_any_tensor
def align(tensor, axes, ndim=None):
    """Adds axes of size 1, so that axis i becomes axis `axes[i]` of `ndim`.

    >>> tuple(align(tf.ones((2, 5)), [0, 2], 4).shape)
    (2, 1, 5, 1)
    """
    ndim = ndim or max(axes) + 1
    index = [None] * ndim
    for axis in axes:
        index[axis] = slice(None)
    return tensor[tuple(index)]


@on_any_tensor
def sequence_masking(x, mask=None, value=0, axis=None, bias=None, return_mask=False):
    """Sets `x` to `value` where a sequence is padded.

    Args:
        x: Tensor `(batch, …)`.
        mask: Tensor `(batch, length)`, true for real tokens, or `None`.
        value: float.
        axis: int or list of int. The axes of the sequence, 1 by default.
        bias: Tensor to add, or if bool another mask.
        return_mask: bool. Whether to return the mask of `x` too.

    >>> x = tf.ones((1, 3))
    >>> sequence_masking(x, tf.constant([[1, 1, 0]]), -1).numpy().tolist()
    [[1.0, 1.0, -1.0]]
    """
    full = None
    if mask is not None:
        for each in axis if isinstance(axis, list) else [1 if axis is None else axis]:
            part = align(tf.cast(mask, "bool"), [0, each % x.shape.rank], x.shape.rank)
            full = part if full is None else full & part
    if bias is not None and bias.dtype == tf.bool:
        full = bias if full is None else full & bias
    elif bias is not None:
        x = x + bias
    if full is not None:
        x = K.where(full, x, value)
    return (x, full) if return_mask else x


@on_any_tensor
def batch_gather(params, indices):
    """Gathers `params` at `indices`, whose axes but the last are batch axes."""
    return tf.gather(params, tf.cast(indices, "int32"), batch_dims=len(indices.shape) - 1)


def search_layer(inputs, name, exclude_from=None):
    """Returns the layer with a name among those that computed a tensor, or `None`.

    `inputs` is a symbolic tensor, a layer or a model, and `exclude_from` is ignored.
    """
    pending, seen, found = [inputs], set(), []
    while pending:
        item = pending.pop()
        operation = item._keras_history.operation if hasattr(item, "_keras_history") else item
        if operation in seen:
            continue
        seen.add(operation)
        found += [operation, *getattr(operation, "layers", [])]
        for node in operation._inbound_nodes:
            pending += node.input_tensors
    return next((layer for layer in found if layer.name == name), None)


def set_gelu(version):
    """Sets what `"gelu"` means in layers and models that are made afterwards.

    Args:
        version: `"erf"`, the exact function and the default, or `"tanh"`, its approximation.

    >>> set_gelu("tanh")
    >>> keras.layers.Dense(2, activation="gelu").activation is gelu_tanh
    True
    >>> set_gelu("erf")
    """
    functions = {"erf": keras.activations.gelu, "tanh": gelu_tanh}
    if version.lower() not in functions:
        raise ValueError(f"`version` must be 'erf' or 'tanh'. Received: version={version!r}")
    _ACTIVATIONS["gelu"] = functions[version.lower()]


_HINTS = {
    "recompute_grad": "Set `recompute_activations` of the blocks: roformer_tf.layers.EncoderBlock.",
    "attention_normalize": "Use `keras.ops.softmax` with `sequence_masking`.",
    "sinusoidal_embeddings|Sinusoidal": "Use roformer_tf.layers.SinusoidalPosition.",
    "apply_rotary_position_embeddings": "Use roformer_tf.layers.RotaryEmbedding.",
    "pool1d|divisible_temporal_padding": "Use `keras.ops.max_pool` and `keras.ops.pad`.",
}
__getattr__ = names_not_offered(__name__, _HINTS)
