"""Runs programs that were written for other packages, under the names that they use."""

import dis
import os
import re
import sys

# Scripts set it before they import bert4keras, whose `keras` is then that of TensorFlow.
is_tf_keras = os.environ.get("TF_KERAS", "0").lower() in ("1", "true", "yes", "on", "y", "t")


def names_not_offered(module, hints, instead="See docs/moving_from_bert4keras.md."):
    """Returns a module's `__getattr__`, whose error says what to use instead of a name.

    It is an `AttributeError`. In `from module import name` it is an `ImportError`, because Python
    replaces an `AttributeError` there by an error that does not say what to use.

    Args:
        module: str. The module's name.
        hints: dict from a regular expression, which must match the whole name, to what to use.
        instead: str. What to do where no hint fits.

    >>> names_not_offered("layers", {"Feed.*": "Use FeedForward of ours."})("FeedForward")
    Traceback (most recent call last):
    AttributeError: `layers` does not offer `FeedForward`. Use FeedForward of ours.
    """

    def __getattr__(name):
        hint = next((text for key, text in hints.items() if re.fullmatch(key, name)), instead)
        caller = sys._getframe(1)
        while caller.f_code.co_name == "__getattr__":  # of a module that offers another's
            caller = caller.f_back
        operation = dis.opname[caller.f_code.co_code[caller.f_lasti]]
        error = ImportError if operation == "IMPORT_FROM" else AttributeError
        raise error(f"`{module}` does not offer `{name}`. {hint}")

    return __getattr__
