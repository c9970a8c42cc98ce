"""One process at a time in the folder of a run."""

import contextlib
import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextlib.contextmanager
def alone_in(folder):
    """Keeps other processes that do the same out of a folder, also if this one is killed: no file stays behind.

    Args:
        folder: `pathlib.Path`; made when it is not there.

    Raises:
        NotADirectoryError: if it is a file.
        BlockingIOError: if another process is in it. Where the file system has no locks nothing is checked.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf.pretraining.folder_lock import alone_in
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with alone_in(folder), alone_in(folder):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: Another process is training in ...
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"The output of a run is a folder, and {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"Another process is training in {folder}. Wait until it ends, stop it, or name another folder."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)
