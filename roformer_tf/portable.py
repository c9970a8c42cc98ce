"""Operations that LiteRT and ONNX convert, in place of faster ones that they do not know."""

import contextlib
import contextvars

_portable = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
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
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


def is_portable():
    """Returns whether the code runs within `portable_operations`."""
    return _portable.get()
