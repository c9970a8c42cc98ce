"""Checks of the settings, with errors that name the setting and what came."""

import dataclasses
import math
import typing

_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "a table",
}


def check_types(values):
    """Refuses fields of a dataclass that are not of their annotated type; an integer is a number too."""
    for field in dataclasses.fields(values):
        allowed = [t for t in typing.get_args(field.type) or (field.type,) if t in _WORDS]
        value = getattr(values, field.name)
        if not allowed or (value is None and type(None) in typing.get_args(field.type)):
            continue
        kinds = {*allowed, int} if float in allowed else set(allowed)
        if type(value) not in kinds:
            raise ValueError(
                f"`{field.name}` must be {' or '.join(_WORDS[t] for t in allowed)}. "
                f"Received: {field.name}={value!r}"
            )


def check_positive(name, value):
    """Refuses anything but a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")


def check_number(name, value, low=None, high=None):
    """Refuses anything but a number from `low` to `high`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not number
        or not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        span = "a number" if low is None else f"a number from {low:g}"
        span += "" if high is None else f" to {high:g}"
        raise ValueError(f"`{name}` must be {span}. Received: {name}={value!r}")


def check_choice(name, value, choices):
    """Refuses anything but one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. Received: {name}={value!r}"
        )
