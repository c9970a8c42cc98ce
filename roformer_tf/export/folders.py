"""Writes a SavedModel folder whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

SAVED_MODEL_FILE = "saved_model.pb"


def check_target(folder, overwrite):
    """Checks that a folder may be written to.

    Raises:
        FileExistsError: If `folder` exists and must not be replaced.
    """
    folder = Path(folder)
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not (folder.exists() or folder.is_symlink()):
        return
    if not overwrite:
        raise FileExistsError(
            f"{folder} already exists. Pass another folder, or `overwrite=True` (--overwrite) to "
            "replace it."
        )
    if not (folder / SAVED_MODEL_FILE).is_file() or folder.is_symlink():
        raise FileExistsError(
            f"Only a SavedModel can be overwritten, and {folder} is not one (it has no "
            f"{SAVED_MODEL_FILE}). Pass another folder, or remove this one yourself."
        )


@contextlib.contextmanager
def new_folder(folder, overwrite=False):
    """Yields an empty folder that replaces `folder` when the block ends without an error.

    The old folder is removed only after that, and restored if the replacement fails.

    Args:
        folder: str or path. Missing parents are created.
        overwrite: bool. Whether to replace an existing SavedModel.

    Yields:
        `pathlib.Path` of the temporary folder.

    Raises:
        FileExistsError: If `folder` exists and must not be replaced; see `check_target`.

    Example:

    >>> from roformer_tf.export.folders import new_folder
    >>> target = Path(tempfile.mkdtemp()) / "model"
    >>> with new_folder(target) as temporary:
    ...     _ = (temporary / "saved_model.pb").write_text("a")
    >>> [file.name for file in target.iterdir()], len(list(target.parent.iterdir()))
    (['saved_model.pb'], 1)
    """
    folder = Path(folder)
    check_target(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    new, old = temporary / "new", temporary / "old"
    new.mkdir()  # with the user's ordinary permissions, unlike mkdtemp's
    try:
        yield new
        check_target(folder, overwrite)  # writing takes a while
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except BaseException:
            if old.exists():
                os.rename(old, folder)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
