"""Sorts what comes of a hostile case: right numbers, a named error, or a defect."""

import contextlib
import signal
import traceback
import warnings
from pathlib import Path
from unittest import mock

import keras
import numpy as np
from tensorflow.python.eager import context

import roformer_tf

PACKAGE = str(Path(roformer_tf.__file__).parent)
NAMED = (
    ValueError, TypeError, OSError, FileNotFoundError, NotADirectoryError, IsADirectoryError,
    FileExistsError, PermissionError, ImportError, ModuleNotFoundError,
)  # fmt: skip
SECONDS = 60


class TooSlow(BaseException):
    """A case took longer than a minute."""


@contextlib.contextmanager
def limited_time():
    def stop(*_):
        raise TooSlow

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def is_named(error, path=None):
    """Whether an error is raised by this package, of a usual type, and names the file or folder."""
    frames = traceback.extract_tb(error.__traceback__)
    message = str(error)
    return (
        type(error) in NAMED
        and frames[-1].filename.startswith(PACKAGE)
        and len(message) > 20
        and (path is None or str(path) in message)
    )


def outcome_of(call, expected=None, path=None, signed=True):
    """Calls a function; returns the outcome and a dictionary of details."""
    with warnings.catch_warnings(), limited_time():
        warnings.simplefilter("ignore")
        try:
            found = call()
        except TooSlow:
            return "defect", {"error": "took longer than a minute"}
        except Exception as error:
            # keeps TensorFlow's kernels: each graph of a model would be prepared again
            with mock.patch.object(context.Context, "clear_kernel_cache"):
                keras.backend.clear_session(free_memory=False)
            frames = traceback.extract_tb(error.__traceback__)
            detail = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            if is_named(error, path):
                return "named error", detail
            last = frames[-1]
            return "defect", {**detail, "at": f"{Path(last.filename).name}:{last.lineno}"}
    if expected is None:
        return "right", {}
    if found.shape == expected.shape and np.array_equal(found, expected):
        return "right", {}
    if not np.isfinite(found).all():
        return "defect", {"error": "numbers that are not finite"}
    return ("defect", {"error": "other numbers"}) if signed else ("nothing claimed", {})
