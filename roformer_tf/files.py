"""Writes files and folders completely or not at all, locks folders, and reads compressed files."""

import contextlib
import ctypes
import errno
import fnmatch
import glob
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}
BUFFER_BYTES = 2**20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux' renameat2
# Names in and beside a folder that is being written.
SAVING, COMPLETE, STALE, OLD = ".saving-", ".complete-", ".stale.json", ".old"


@contextlib.contextmanager
def open_compressed(path):
    r"""Opens a file for reading bytes; decompresses it if its name ends in `.gz` or `.xz`.

    Yields:
        Tuple `(file, raw)`: the decompressed file, and the file on disk, whose `tell()` is the
        number of bytes read so far.

    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.txt.gz")
    >>> with gzip.open(path, "wb") as file:
    ...     _ = file.write(b"one\ntwo\n")
    >>> with open_compressed(path) as (file, _):
    ...     list(file)
    [b'one\n', b'two\n']
    """
    with open(path, "rb", buffering=0) as raw:
        decompress = COMPRESSED.get(os.path.splitext(path)[1])
        # buffered, so that lines are found in C
        with io.BufferedReader(decompress(raw) if decompress else raw, BUFFER_BYTES) as file:
            yield file, raw


@contextlib.contextmanager
def replace_file(path):
    """Replaces a file at once: writes bytes to a temporary file, then renames it to `path`.

    A reader of `path` finds the old file or the new one, never a part of it. The next call removes
    what a killed process left beside it. If `path` is a link, it stays and its target is replaced.
    If `path` is not a file but a pipe, for example, the bytes are written to it.

    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
    >>> with replace_file(path) as file:
    ...     _ = file.write(b"123")
    >>> os.path.getsize(path), os.listdir(os.path.dirname(path))
    (3, ['numbers.bin'])
    """
    if os.path.exists(path) and not os.path.isfile(path):
        # opened by the given name: a pipe such as /dev/stdout may have no other
        with open(path, "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    prefix = f"{SAVING}{path.name}-"
    _remove_abandoned(path.parent, prefix)
    with _temporary_folder(path.parent, prefix) as temporary, _full_disk_named(path):
        with open(temporary / path.name, "wb") as file:
            yield file
        os.replace(temporary / path.name, path)


def write_picture(figure, path, dpi):
    """Writes a Matplotlib figure to a `.png` or `.svg` file. Creates the folders above the file.

    The file has no date and no version of Matplotlib, so the same figure gives the same bytes.
    """
    check_not_a_file(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with replace_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata=metadata)


@contextlib.contextmanager
def replace_files(folder, whole=False, remove=(), exist_ok=True, before_moving=None):
    """Writes the files of a folder completely or not at all.

    Yields an empty folder on the same disk. If the block succeeds, its files are moved to `folder`.
    If it fails, nothing has changed. A process that is killed leaves the old version or the new
    one: a new folder appears at once, and a folder that is replaced as a whole is exchanged at
    once. In an existing folder files are moved one after the other; if the process is killed in
    between, the rest is in a hidden folder, and `finish_replacing` or the next `replace_files`
    moves it.

    Args:
        folder: str or path. The folder to write. Its parents are created.
        whole: bool. Whether to replace an existing folder as a whole, and remove its other files.
        remove: tuple of str. Patterns of files of the old version, such as `"*.h5"`. They are
            removed unless the new version has them. All other files stay.
        exist_ok: bool. Whether to write to a folder that another process has created meanwhile.
        before_moving: Function of the temporary folder and `folder`. Called when all files are
            written and `folder` is locked.

    Yields:
        `pathlib.Path` of the temporary folder. Its name begins with `.saving-`.

    Raises:
        NotADirectoryError: If `folder` is a file.
        FileExistsError: If the folder exists in the end and `exist_ok` is `False`.
        OSError: If the files cannot be written, for instance because the disk is full.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf.files import replace_files
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "model"
    >>> with replace_files(target) as temporary:
    ...     _ = (temporary / "a.txt").write_text("a")
    >>> [file.name for file in target.iterdir()]
    ['a.txt']
    """
    folder = Path(os.path.realpath(folder))
    check_not_a_file(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent, f"{SAVING}{folder.name}-")
    _remove_abandoned(folder, SAVING)
    inside = folder.is_dir() and not whole
    prefix = SAVING if inside else f"{SAVING}{folder.name}-"
    parent = folder if inside else folder.parent
    with _temporary_folder(parent, prefix) as temporary, _full_disk_named(folder):
        new = temporary / f"{SAVING}new"
        new.mkdir()  # with the user's ordinary permissions, unlike mkdtemp's
        yield new
        if not folder.exists() and before_moving is not None:
            before_moving(new, folder)
        if inside or not _rename_to_new(new, folder):
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, f"Another process has written {folder}")
            if whole:
                _exchange(new, folder, temporary / "old")
            else:
                with lock_folder(folder, wait=True):
                    finish_replacing(folder, locked=True)
                    if before_moving is not None:
                        before_moving(new, folder)
                    _move_files(new, folder, remove)


def finish_replacing(folder, locked=False):
    """Completes what a killed `replace_files` began to move into a folder.

    Warns if there was something to complete. Removes folders that were not complete.

    Args:
        folder: `pathlib.Path`.
        locked: bool. Whether the caller has locked the folder.

    Raises:
        OSError: If the files cannot be moved, for instance in a folder that is read-only.
    """
    if not any(name.startswith((SAVING, COMPLETE)) for name in os.listdir(folder)):
        return
    with contextlib.nullcontext() if locked else lock_folder(folder, wait=True):
        for complete in sorted(folder.glob(f"{COMPLETE}*")):
            _move_complete(complete, folder, [])
            warnings.warn(
                f"A process was killed while it wrote to {folder}. Its files were complete, and "
                "have been moved to their places now.",
                stacklevel=3,
            )
    _remove_abandoned(folder, SAVING)


def _rename_to_new(new, folder):
    """Renames a folder unless there is one with files already; returns whether it did."""
    try:
        os.rename(new, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _move_files(new, folder, remove):
    """Moves files into an existing folder. A kill leaves the rest in a folder `.complete-…`."""
    names = os.listdir(new)
    stale = [
        name
        for name in os.listdir(folder)
        if name not in names and any(fnmatch.fnmatch(name, pattern) for pattern in remove)
    ]
    (new / STALE).write_text(json.dumps(stale), encoding="utf-8")
    complete = folder / new.parent.name.replace(SAVING, COMPLETE)
    os.rename(new, complete)  # from here on it is the new version
    renamed = []
    try:
        _move_complete(complete, folder, renamed)
    except OSError:
        for source, target in reversed(renamed):
            os.rename(target, source)
        shutil.rmtree(complete, ignore_errors=True)  # reached only if every old file is restored
        raise


def _move_complete(complete, folder, renamed):
    """Moves the files of a complete version; appends each `(source, target)` to `renamed`."""
    stale, old = complete / STALE, complete / OLD
    old.mkdir(exist_ok=True)

    def rename(source, target):
        os.rename(source, target)
        renamed.append((source, target))

    def put_away(path):
        with contextlib.suppress(FileNotFoundError):
            rename(path, Path(tempfile.mkdtemp(dir=old), path.name))

    for name in sorted(set(os.listdir(complete)) - {STALE, OLD}):
        put_away(folder / name)
        rename(complete / name, folder / name)
    if stale.exists():
        for name in json.loads(stale.read_text(encoding="utf-8")):
            put_away(folder / name)
    shutil.rmtree(complete, ignore_errors=True)


def _exchange(new, folder, old):
    """Exchanges two folders at once, or where the system cannot, by two renames."""
    if RENAME_EXCHANGE is not None:
        with contextlib.suppress(AttributeError, OSError, TypeError):
            rename = ctypes.CDLL(None).renameat2
            paths = AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(folder)
            if rename(*paths, RENAME_EXCHANGE) == 0:
                return
    os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        os.rename(old, folder)
        raise


def _remove_abandoned(folder, prefix):
    """Removes temporary files and folders whose process was killed."""
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _locked(left) as locked:
            if locked and left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            elif locked:
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary_folder(parent, prefix):
    """Makes a folder, and removes it in the end.

    The folder is locked, so that no other process takes it for one that a killed process left.
    """
    with contextlib.ExitStack() as stack:
        while True:
            temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with contextlib.suppress(FileNotFoundError):
                stack.enter_context(_locked(temporary, wait=True))
                if temporary.exists():  # else another process removed it before it was locked
                    break
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)  # before it is unlocked
        yield temporary


@contextlib.contextmanager
def _locked(path, wait=False):
    """Locks a file or folder; yields `False` where there are no locks.

    Raises `BlockingIOError` if another process has locked it and `wait` is `False`.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        locked = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            locked = False
        yield locked
    finally:
        os.close(handle)


def check_room(folder, num_bytes):
    """Raises `OSError` if a file of so many bytes does not fit on the disk of a folder."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    room = shutil.disk_usage(existing).free
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        room = room if limit == resource.RLIM_INFINITY else min(room, limit)
    if num_bytes > room:
        raise _no_room(folder)


@contextlib.contextmanager
def _full_disk_named(path):
    """Raises an error that names `path` if the disk is full, whichever library noticed it."""
    try:
        yield
    except Exception as error:
        if _is_disk_full(error):
            raise _no_room(path) from error
        raise


def _no_room(path):
    return OSError(
        errno.ENOSPC,
        f"The disk is full, or a file is larger than allowed: {path} could not be written. "
        "Nothing there has changed. Make room, or write to another folder",
    )


def _is_disk_full(error):
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    texts = "No space left", "File too large", "quota exceeded"
    return any(text in str(error) for text in texts)  # of TensorFlow, for instance


def remove_temporary(folder):
    """Removes what killed processes left of `replace_files`; no other process may be writing."""
    for left in Path(folder).glob(f"{SAVING}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def cache_folder():
    """Returns the folder for what can be made again, or `None` if nothing is to be kept.

    The environment variable `ROFORMER_TF_CACHE` names it. If that is empty, nothing is kept.
    """
    folder = os.environ.get("ROFORMER_TF_CACHE")
    if folder is not None:
        return Path(folder).expanduser() if folder else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roformer_tf"


def flush_to_disk(path):
    """Waits until a file or folder is on the disk, where a power failure does not reach it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_not_a_file(folder):
    """Raises `NotADirectoryError` if a folder cannot be made because a file is in its place."""
    nearest = next(part for part in (folder, *folder.parents) if part.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"Expected a folder to write to, but {nearest} is a file.")


@contextlib.contextmanager
def lock_folder(folder, wait=False):
    """Locks a folder against other processes that lock it. The lock ends with the process.

    Args:
        folder: `pathlib.Path`. Created if it does not exist.
        wait: bool. Whether to wait for the other process instead of raising an error.

    Yields:
        bool. `False` where the file system has no locks, so that nothing is locked.

    Raises:
        NotADirectoryError: If `folder` is a file.
        BlockingIOError: If another process has locked the folder and `wait` is `False`.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf.files import lock_folder
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with lock_folder(folder), lock_folder(folder):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: Another process is using ...
    """
    check_not_a_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            locked = stack.enter_context(_locked(folder))
        except BlockingIOError:
            if not wait:
                raise BlockingIOError(
                    f"Another process is using {folder}. Wait until it ends, stop it, or name "
                    "another folder."
                ) from None
            print(f"Waiting for another process that is using {folder}", file=sys.stderr)
            locked = stack.enter_context(_locked(folder, wait=True))
        yield locked
