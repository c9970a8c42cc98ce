"""`K`: `keras.backend` of Keras 2, with what bert4keras adds to it, on tensors of any kind.

The functions are those that Keras 3 keeps for old programs, on TensorFlow. Here they also take the
symbolic tensors of Keras 3, from which functional models are made.
"""

import functools

import keras
import numpy as np
import tensorflow as tf
from keras.config import (  # noqa: F401
    epsilon,
    floatx,
    image_data_format,
    set_epsilon,
    set_floatx,
    set_image_data_format,
)
from keras.src.legacy import backend as legacy
from keras.src.utils.naming import auto_name
from keras.utils import clear_session, get_source_inputs  # noqa: F401

from roformer_tf.compat import names_not_offered

# functions that return no tensor
_AT_ONCE = ("int_shape", "ndim", "dtype", "is_sparse", "name_scope", "count_params")


class _Operation(keras.Operation):
    """Applies a function of TensorFlow tensors in a functional model."""

    def __init__(self, function):
        super().__init__(name=auto_name(f"k_{function.__name__}"))
        self.function = function

    def call(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def compute_output_spec(self, *args, **kwargs):
        return keras.src.backend.compute_output_spec(self.function, *args, **kwargs)


def on_any_tensor(function):
    """Returns a function that takes symbolic tensors too, from one of TensorFlow's tensors.

    >>> on_any_tensor(tf.square)(keras.Input((None,))).shape
    (None, None)
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        leaves = keras.tree.flatten((args, kwargs))
        if any(isinstance(x, keras.KerasTensor) for x in leaves):
            return _Operation(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


# === What bert4keras changes ===

logsumexp = keras.ops.logsumexp


@on_any_tensor
def reshape(tensor, *args):
    """Reshapes to a shape, or with `(shape_1, axis_1, shape_2, axis_2, …)` axis by axis.

    Example: splits the last axis.

    >>> from roformer_tf.compat.bert4keras.backend import K
    >>> tuple(K.reshape(K.ones((2, 5, 6)), (3, -1), 2).shape)
    (2, 5, 3, 2)
    """
    if len(args) == 1:
        return tf.reshape(tensor, args[0])
    if len(args) % 2:
        raise ValueError(f"`K.reshape` takes a shape and an axis in turn. Received: {args}")
    sizes = tf.shape(tensor)
    parts = [[size or sizes[i]] for i, size in enumerate(tensor.shape)]
    for shape, axis in zip(args[::2], args[1::2]):
        known = [size for size in shape if size != -1]
        rest = parts[axis][0] // int(np.prod(known)) if -1 in shape else None
        parts[axis] = [rest if size == -1 else size for size in shape]
    return tf.reshape(tensor, [size for part in parts for size in part])


@on_any_tensor
def flatten(tensor, start=None, end=None):
    """Joins the axes from `start` to before `end`; by default all."""
    rank = tensor.shape.rank
    start, end = (start or 0) % rank, end or rank
    end = end if end > 0 else end + rank
    sizes = tf.shape(tensor)
    return tf.reshape(tensor, tf.concat([sizes[:start], [-1], sizes[end:]], 0))


@on_any_tensor
def where(cond, x, y):
    """Chooses from `x` where `cond` is true, else from `y`; both may be numbers."""
    dtype = next((a.dtype for a in (x, y) if tf.is_tensor(a)), floatx())
    x, y = (a if tf.is_tensor(a) else tf.constant(a, dtype) for a in (x, y))
    return tf.where(tf.cast(cond, "bool"), x, y)


@on_any_tensor
def eye(size, dtype=None, name=None):
    """Returns an identity matrix; `size` may be a tensor."""
    return tf.eye(size, dtype=dtype or floatx(), name=name)


def symbolic(function):
    """Returns the function itself."""
    return function


def function(inputs, outputs, updates=None):
    """Returns a function that computes tensors of a model, from a list of arrays to another."""
    model = keras.Model(inputs, outputs)

    def call(arrays):
        return [np.array(x) for x in keras.tree.flatten(model(arrays, training=False))]

    return call


# === Variables ===

eval = get_value = keras.ops.convert_to_numpy  # of a tensor or a variable


def set_value(x, value):
    """Sets a variable."""
    x.assign(np.asarray(value))


def batch_set_value(pairs):
    """Sets variables, from pairs of a variable and a value."""
    for variable, value in pairs:
        set_value(variable, value)


def update(x, new_x):
    """Sets a variable and returns it."""
    x.assign(new_x)
    return x


def update_add(x, increment):
    """Adds to a variable and returns it."""
    x.assign_add(increment)
    return x


def update_sub(x, decrement):
    """Subtracts from a variable and returns it."""
    x.assign_sub(decrement)
    return x


_HINTS = {
    "gradients": "Use `tf.GradientTape`.",
    ".*learning_phase|in_(train|test)_phase": "Use the argument `training` of `call`.",
    "[gs]et_session|manual_variable_initialization": (
        "There are no sessions: tensors are computed at once."
    ),
    "epislon": "Use `K.epsilon`.",
}
_missing = names_not_offered(
    "K", _HINTS, "Use the function of `keras.ops` or `tf`, if there is one."
)


def __getattr__(name):
    found = getattr(legacy, name, None)
    is_theirs = getattr(found, "__module__", "") == legacy.__name__
    if name.startswith("_") or not is_theirs or name in _HINTS:
        return _missing(name)
    # not kept as a global name: `any` would hide Python's own here
    return found if name in _AT_ONCE else on_any_tensor(found)
