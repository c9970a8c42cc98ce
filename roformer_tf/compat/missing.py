"""Errors that say what to use in place of a name that is not offered."""

import re


def missing_name(module, name, hints, instead):
    """Returns the `AttributeError` of a name that a module does not offer.

    Args:
        module: str. The module's name.
        name: str. What was asked for.
        hints: dict from regular expression of a whole name to what to use instead.
        instead: str. What to do where no hint fits.

    Example:

    >>> print(missing_name("layers", "FeedForward", {"Feed.*": "Use FeedForward of ours."}, ""))
    `layers` does not offer `FeedForward`. Use FeedForward of ours.
    """
    hint = next((text for key, text in hints.items() if re.fullmatch(key, name)), instead)
    return AttributeError(f"`{module}` does not offer `{name}`. {hint}")
