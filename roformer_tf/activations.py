"""Activations of the original models, by the names that `bert_config.json` uses."""

import math

import keras
from keras import ops

from roformer_tf.portable import fused_operation


@keras.saving.register_keras_serializable(package="roformer_tf")
def gelu(x):
    """Exact GELU, `0.5 * x * (1 + erf(x / sqrt(2)))`.

    Same values as `keras.activations.gelu(x, approximate=False)`, written with `erf` because Keras'
    own emits the TensorFlow op `Erfc`, which the ONNX converter does not know.

    Args:
        x: Tensor of any shape, floating.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import gelu
    >>> np.array(gelu(np.float32([-1, 0, 1]))).round(4).tolist()
    [-0.15870000422000885, 0.0, 0.8413000106811523]

    Reference: `gelu_erf` of bert4keras' `backend.py`.
    """
    x = ops.convert_to_tensor(x)
    if make := fused_operation():
        return make("Gelu", [x])
    return 0.5 * x * (1.0 + ops.erf(x * (1.0 / math.sqrt(2.0))))


@keras.saving.register_keras_serializable(package="roformer_tf")
def gelu_tanh(x):
    """The tanh approximation of GELU, as `hidden_act: "gelu_tanh"` asks for.

    Args:
        x: Tensor of any shape, floating.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import gelu_tanh
    >>> np.array(gelu_tanh(np.float32([-1, 0, 1]))).round(4).tolist()
    [-0.15880000591278076, 0.0, 0.8411999940872192]

    Reference: `gelu_tanh` of bert4keras' `backend.py`.
    """
    return keras.activations.gelu(x, approximate=True)


_OWN = {"gelu": gelu, "gelu_tanh": gelu_tanh}


def get_activation(name):
    """Activation by its name in `bert_config.json`, or as any `keras.activations` identifier.

    Args:
        name: `"gelu"` (exact), `"gelu_tanh"`, any Keras activation name, a callable, the dict that
            Keras saves of a callable, or `None` (linear).

    Returns:
        A callable on tensors.

    Raises:
        ValueError: If Keras does not know it either.

    Example:

    >>> from roformer_tf.layers import get_activation
    >>> get_activation("gelu").__name__, get_activation("relu").__name__
    ('gelu', 'relu')
    """
    if isinstance(name, str) and name in _OWN:
        return _OWN[name]
    try:
        return keras.activations.get(name)
    except ValueError as error:
        raise ValueError(
            "`activation` must be 'gelu', 'gelu_tanh', or an activation of Keras, such as 'relu'. "
            f"Received: activation={name!r}"
        ) from error


def activation_name(activation):
    """Returns the name by which `get_activation` finds a function, or any other value unchanged.

    Example:

    >>> import keras
    >>> from roformer_tf.activations import activation_name
    >>> activation_name(keras.activations.silu)
    'silu'
    """
    name = getattr(activation, "__name__", None)
    function = _OWN.get(name) or getattr(keras.activations, str(name), None)
    return name if function is activation else activation
