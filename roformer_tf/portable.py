"""How models are traced: with operations that other runtimes have, and without warnings."""

import contextlib
import contextvars

from keras import ops

# Attributes of a `tf.function` that other graphs call instead of copying it. TensorFlow then
# prepares it only once, which takes some 0.1 s for a tokenizer.
NO_INLINE = {"_noinline": True}

_portable = contextvars.ContextVar("portable", default=False)
_inference_only = contextvars.ContextVar("inference_only", default=False)
_fused = contextvars.ContextVar("fused", default=None)


@contextlib.contextmanager
def set_while(variable, value):
    """Context in which a `contextvars.ContextVar` has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def portable_operations():
    """Context in which models are traced without conditionals, loops and `roll`.

    Attention then holds all its scores at once, however long the input is. The numbers are the
    same.

    Example:

    >>> from roformer_tf.portable import is_portable, portable_operations
    >>> with portable_operations():
    ...     is_portable()
    True
    """
    return set_while(_portable, True)


def is_portable():
    """Returns whether the code runs within `portable_operations`."""
    return _portable.get()


def fused_operations(make):
    """Context in which layer norm and GELU are traced as one operation each.

    The layers stay as they are: other threads may run and trace them meanwhile.

    Args:
        make: Function of the operation's name in ONNX and a list of its inputs. It returns the
            output.

    Example:

    >>> from roformer_tf.portable import fused_operation, fused_operations
    >>> with fused_operations(lambda name, inputs: name):
    ...     fused_operation()("Gelu", [1.0])
    'Gelu'
    """
    return set_while(_fused, make)


def fused_operation():
    """Returns the function given to `fused_operations`, or `None` outside of it."""
    return _fused.get()


def inference_only():
    """Context in which models are traced without the gradients that are written by hand.

    TensorFlow saves such a gradient, but not the gradient of the gradient, and warns about each of
    them whenever the SavedModel is loaded. The numbers are the same.

    Example:

    >>> from roformer_tf.portable import custom_gradient, inference_only
    >>> def double(x):
    ...     return 2 * x, lambda upstream: 2 * upstream
    >>> with inference_only():
    ...     custom_gradient(double)(3)
    6
    """
    return set_while(_inference_only, True)


def custom_gradient(function):
    """`keras.ops.custom_gradient`; within `inference_only`, the function without its gradient.

    The gradient is a function of the upstream one alone, under every backend.
    """
    if _inference_only.get():
        return lambda *args: function(*args)[0]

    @ops.custom_gradient
    def with_gradient(*args):
        output, gradient = function(*args)

        def called(*given, upstream=None):  # PyTorch passes it by position
            return gradient(given[0] if upstream is None else upstream)

        return output, called

    return with_gradient


def trace_quietly(function):
    """Keeps TensorFlow from warning that a function is traced too often, and returns it.

    TensorFlow counts all functions that the same lines of code make as one, although they belong to
    different models. Each of them is traced no more often than it must be.

    Args:
        function: `tf.function`, or a function around one, as Keras' trainer makes it.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.portable import trace_quietly
    >>> double = trace_quietly(tf.function(lambda x: 2 * x))
    >>> int(double(tf.constant(3)))
    6
    """
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inside += [getattr(part, "__wrapped__", None) for part in inside]
    for traced in (function, *inside):
        if hasattr(traced, "_omit_frequent_tracing_warning"):
            traced._omit_frequent_tracing_warning = True
    return function
