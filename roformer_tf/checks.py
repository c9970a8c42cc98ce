"""Argument checks whose errors name the argument and what was received."""

import dataclasses
import math
import numbers
import os
import typing

_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "a table",
}


def check_tensorflow_backend(action, advice):
    """Raises `ValueError` if the Keras backend is not TensorFlow.

    Args:
        action: str. What needs it, such as `"Pretraining"`.
        advice: str. What to do with another backend.
    """
    import keras

    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"{action} needs the TensorFlow backend of Keras. Received: "
            f"{keras.config.backend()!r}. {advice}"
        )


def check_positive_integer(name, value, optional=False):
    """Raises `ValueError` unless `value` is a positive integer, or `None` if it is `optional`.

    >>> check_positive_integer("num_heads", 0)
    Traceback (most recent call last):
    ValueError: `num_heads` must be a positive integer. Received: num_heads=0
    """
    if optional and value is None:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")


def is_number(value):
    """Returns whether a value is a finite int or float.

    >>> is_number(0.5), is_number(float("nan")), is_number(True)
    (True, False, False)
    """
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def check_number(name, value, low=None, high=None, optional=False):
    """Raises `ValueError` unless `value` is a finite number in `[low, high]`, or an `optional` None.

    >>> check_number("dropout", 1.5, 0, 1)
    Traceback (most recent call last):
    ValueError: `dropout` must be a number from 0 to 1. Received: dropout=1.5
    """
    if optional and value is None:
        return
    if (
        not is_number(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        span = "a number" if low is None else f"a number from {low:g}"
        span += "" if high is None else f" to {high:g}"
        raise ValueError(f"`{name}` must be {span}. Received: {name}={value!r}")


def check_one_of(name, value, choices, optional=False):
    """Raises `ValueError` unless `value` is one of `choices`, or `None` if it is `optional`.

    >>> check_one_of("padding", "left", ("longest", "max_length"))
    Traceback (most recent call last):
    ValueError: `padding` must be one of 'longest', 'max_length'. Received: padding='left'
    """
    if value in choices or (optional and value is None):
        return
    listed = ", ".join(map(repr, choices)) + (" or None" if optional else "")
    raise ValueError(f"`{name}` must be one of {listed}. Received: {name}={value!r}")


def check_types(values):
    """Raises `ValueError` for a field of a dataclass that is not of its annotated type.

    A path in place of a string becomes one.

    >>> @dataclasses.dataclass
    ... class Settings:
    ...     whole_word: bool = False
    >>> check_types(Settings("no"))
    Traceback (most recent call last):
    ValueError: `whole_word` must be true or false. Received: whole_word='no'
    """
    for field in dataclasses.fields(values):
        allowed = [t for t in typing.get_args(field.type) or (field.type,) if t in _WORDS]
        value = getattr(values, field.name)
        if not allowed or (value is None and type(None) in typing.get_args(field.type)):
            continue
        if str in allowed and isinstance(value, os.PathLike):
            value = os.fspath(value)
            object.__setattr__(values, field.name, value)
        kinds = {*allowed, int} if float in allowed else set(allowed)  # an integer is a number
        if type(value) not in kinds:
            raise ValueError(
                f"`{field.name}` must be {' or '.join(_WORDS[t] for t in allowed)}. "
                f"Received: {field.name}={value!r}"
            )
