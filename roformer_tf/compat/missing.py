"""Errors that say what to use instead of a name that is not offered."""

import dis
import re
import sys


def missing_name(module, name, hints, instead):
    """Returns the error of a name that a module does not offer, for its `__getattr__` to raise.

    It is an `AttributeError`. In `from module import name` it is an `ImportError`, because Python
    replaces an `AttributeError` there by an error that does not say what to use.

    Args:
        module: str. The module's name.
        name: str. The name that was asked for.
        hints: dict from a regular expression, which must match the whole name, to what to use
            instead.
        instead: str. What to do where no hint fits.

    Example:

    >>> print(missing_name("layers", "FeedForward", {"Feed.*": "Use FeedForward of ours."}, ""))
    `layers` does not offer `FeedForward`. Use FeedForward of ours.
    """
    hint = next((text for key, text in hints.items() if re.fullmatch(key, name)), instead)
    frame = sys._getframe(2)  # of whoever asks the module's `__getattr__`
    operation = frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else 0
    error = ImportError if dis.opname[operation] == "IMPORT_FROM" else AttributeError
    return error(f"`{module}` does not offer `{name}`. {hint}")
