"""Writes files and folders completely or not at all, locks folders, and reads compressed files."""

import contextlib
import errno
import gzip
import io
import lzma
import os
import shutil
import sys
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}
BUFFER_BYTES = 2**20


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

    A reader of `path` finds the old file or the new one, never a part of it.

    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
    >>> with replace_file(path) as file:
    ...     _ = file.write(b"123")
    >>> os.path.getsize(path), os.listdir(os.path.dirname(path))
    (3, ['numbers.bin'])
    """
    path = os.fspath(path)
    handle, temporary = tempfile.mkstemp(
        prefix=os.path.basename(path) + ".", dir=os.path.dirname(path) or "."
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        # mkstemp creates files that only the owner can read; use the permissions of open()
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def replace_files(folder, whole=False):
    """Writes the files of a folder completely or not at all.

    Yields an empty folder on the same disk. If the block succeeds, its files are moved to `folder`.
    A new folder appears at once, complete. In an existing folder, files of the same name are
    replaced and all others stay. If that fails halfway, the old files are restored.

    Args:
        folder: str or path. The folder to write. Its parents are created.
        whole: bool. Whether to replace an existing folder as a whole, and remove its other files.

    Yields:
        `pathlib.Path` of the temporary folder.

    Raises:
        NotADirectoryError: If `folder` is a file.
        OSError: If another process has written a new `folder` first.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf.files import replace_files
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "model"
    >>> with replace_files(target) as temporary:
    ...     _ = (temporary / "a.txt").write_text("a")
    >>> [file.name for file in target.iterdir()]
    ['a.txt']
    """
    folder = Path(folder)
    _check_not_a_file(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = folder.is_dir() and not whole
    temporary = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder if inside else folder.parent))
    new, old = temporary / "new", temporary / "old"
    new.mkdir()  # with the user's ordinary permissions, unlike mkdtemp's
    old.mkdir()
    try:
        yield new
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    names = sorted(os.listdir(new))
    moves = [(new / name, folder / name) for name in names] if inside else [(new, folder)]
    renamed = []

    def rename(source, target):
        os.replace(source, target)
        renamed.append((source, target))

    try:
        for source, target in moves:
            while True:
                if inside or whole:
                    with contextlib.suppress(FileNotFoundError):  # there was no old one
                        rename(target, Path(tempfile.mkdtemp(dir=old), target.name))
                try:
                    rename(source, target)
                    break
                except OSError as error:  # another process put its folder there in between
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not whole:
                        raise
    except BaseException:
        for source, target in reversed(renamed):
            os.replace(target, source)
        # reached only if every old file is restored
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary(folder):
    """Removes what killed processes left of `replace_files`; no other process may be writing."""
    for left in Path(folder).glob(".saving-*"):
        shutil.rmtree(left, ignore_errors=True)


def flush_to_disk(path):
    """Waits until a file or folder is on the disk, where a power failure does not reach it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_not_a_file(folder):
    if folder.is_file():
        raise NotADirectoryError(f"Expected a folder to write to, but {folder} is a file.")


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
    _check_not_a_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        locked = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise BlockingIOError(
                    f"Another process is using {folder}. Wait until it ends, stop it, or name "
                    "another folder."
                ) from None
            print(f"Waiting for another process that is using {folder}", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            locked = False
        yield locked
    finally:
        os.close(handle)
