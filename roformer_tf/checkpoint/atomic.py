"""Writing a folder so that a failure loses nothing and leaves nothing behind."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


@contextlib.contextmanager
def replace_files(folder):
    """Yields an empty folder on the same disk; its files move to `folder` only when the block ends well.

    A folder that does not exist yet appears at once, complete. In an existing one files of the same name are replaced
    and all others stay; when that fails half-way, the old files are put back.

    Args:
        folder: str or path of the folder to fill; its parents are made.

    Yields:
        `pathlib.Path` of the temporary folder.

    Raises:
        NotADirectoryError: if `folder` is a file.

    Example:

    >>> import tempfile, pathlib
    >>> from roformer_tf.checkpoint.atomic import replace_files
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "model"
    >>> with replace_files(target) as temporary:
    ...     _ = (temporary / "a.txt").write_text("a")
    >>> [file.name for file in target.iterdir()]
    ['a.txt']
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"Expected a folder to write to, but {folder} is a file.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    exists = folder.is_dir()
    place = folder if exists else folder.parent
    temporary = Path(tempfile.mkdtemp(prefix=".saving-", dir=place))
    new = temporary / "new"
    new.mkdir()  # with the user's ordinary permissions, unlike mkdtemp's
    try:
        yield new
        if not exists:
            os.rename(new, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if exists:
        _swap(new, folder, temporary / "old")
    shutil.rmtree(temporary, ignore_errors=True)


def _swap(new, folder, old):
    old.mkdir()
    names = sorted(file.name for file in new.iterdir())
    replaced, added = [], []
    try:
        for name in names:
            if (folder / name).exists():
                os.replace(folder / name, old / name)
                replaced.append(name)
        for name in names:
            os.replace(new / name, folder / name)
            added.append(name)
    except BaseException:
        for name in added:
            os.replace(folder / name, new / name)
        for name in replaced:
            os.replace(old / name, folder / name)
        shutil.rmtree(
            new.parent, ignore_errors=True
        )  # only reached when everything is back in its place
        raise
