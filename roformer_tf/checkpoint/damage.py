"""Explains the errors of reading a model's files: what is wrong, where, and what to do."""

import contextlib
import json
import os
import stat
import traceback
from pathlib import Path

import h5py

_PACKAGE = str(Path(__file__).parent.parent)
_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
COPY = "Copy it again from where it was saved."


@contextlib.contextmanager
def named_errors(path):
    """Names `path` in every error that reading it raises.

    Adds the path to an error of this package that lacks it. Any other error, of Keras, HDF5,
    safetensors or Python itself, becomes a `ValueError`.

    >>> with named_errors("model.bin"):
    ...     [][0]
    Traceback (most recent call last):
    ValueError: model.bin cannot be loaded: IndexError: list index out of range. ...
    """
    try:
        yield
    except Exception as error:
        message, kind = str(error), type(error)
        if isinstance(error, Warning):  # a program may make warnings errors
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename.startswith(_PACKAGE) and (last.line or "").startswith("raise "):
            if str(path) in message or kind not in (ValueError, TypeError, FileNotFoundError):
                raise
            raise kind(f"{message} (while loading {path})") from error
        raise ValueError(
            f"{path} cannot be loaded: {kind.__name__}: {_reason(message)}. Either a file in it is "
            "damaged or was written by another version, or an argument does not fit it. "
            "`python -m roformer_tf inspect` shows what it holds."
        ) from error


def _reason(message):
    """Returns the part of a message that says what is wrong, on one line."""
    # Keras puts the whole configuration first
    message = message.rsplit("Exception encountered: ", 1)[-1].strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = " ".join(lines[:3])
    return (reason if len(reason) < 400 else f"{reason[:400]} …").rstrip(".") or "no message"


def first_line(error):
    """Returns the first line of an error's message without a full stop, or the error's class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def check_file(file, purpose):
    """Raises an error unless a path is a regular file, and not a Git LFS pointer.

    The error says its `purpose`: what the file is for, and what to do if it is missing.
    """
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError) as error:  # a name may be too long, or have a null byte
        reason = "is missing"
        if file.is_symlink():
            reason = f"is a link to {file.readlink()}, which does not exist"
            if "symbolic links" in str(error):
                reason = f"is a link to {file.readlink()}, which leads back to it"
        raise FileNotFoundError(f"{file} {reason}: {purpose}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise ValueError(f"{file} must be a file, but is {kind}: {purpose}")
    with open(file, "rb") as stream:
        if stream.read(len(_LFS_HEADER)) == _LFS_HEADER:
            raise ValueError(
                f"{file} is a Git LFS pointer, not the file itself. Fetch the content with "
                "`git lfs install && git lfs pull` in the repository it came from."
            )


def read_json(file, purpose):
    """Reads a JSON object.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If it is not a JSON object. The message contains line and column.
    """
    check_file(file, purpose)
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            f"{COPY}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 text: {error.reason} at byte {error.start}. {COPY}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{file} is not valid JSON: it is nested too deep. {COPY}") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} must hold a JSON object `{{…}}`. Received: {type(content).__name__}. {COPY}"
        )
    return content


def files_of_index(index, ending):
    """Returns the paths of the shards that an index names."""
    weight_map = read_json(index, "it names the files of weights.").get("weight_map")
    names = []
    for part in weight_map.values() if isinstance(weight_map, dict) else ():
        names += part if isinstance(part, list) else [part]
    if not names or not all(
        isinstance(name, str) and name == os.path.basename(name) and name.endswith(ending)
        for name in names
    ):
        raise ValueError(
            f'{index} must hold {{"weight_map": {{tensor: file, …}}}} with the names of '
            f"{ending} files beside it. Received: {str(weight_map)[:100]}"
        )
    files = [index.parent / name for name in sorted(set(names))]
    for file in files:
        check_file(file, "the index names it.")
    return files


def largest_size(stored):
    """Returns into how many bytes `stored` bytes may unpack. More would be a zip bomb."""
    return max(2**20, 100 * stored)


@contextlib.contextmanager
def read_errors(file, kinds=Exception):
    """Turns the errors of a library that reads a file into one that says the file is damaged."""
    try:
        yield
    except kinds as error:
        raise ValueError(
            f"{file} is damaged or cut off ({file.stat().st_size:,} bytes): "
            f"{_reason(str(error))}. {COPY}"
        ) from error


@contextlib.contextmanager
def open_h5(file):
    """Opens a file of weights that Keras wrote.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If it is damaged.
    """
    check_file(file, "it holds weights of the model.")
    with read_errors(file, (OSError, RuntimeError, KeyError)), h5py.File(file) as stored:
        yield stored
