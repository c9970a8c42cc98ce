"""Files that are written whole or not at all."""

import contextlib
import os
import tempfile


@contextlib.contextmanager
def replacing(path):
    """Opens a temporary file beside `path` for bytes, and gives it that name in the end.

    Whoever reads `path`, another process too, finds the old file or the new one, never a part.

    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
    >>> with replacing(path) as file:
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
        # mkstemp makes files for the owner's eyes alone; give it what open() would have given
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
