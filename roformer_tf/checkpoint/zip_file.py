"""Unpacks the model in a `.zip` file, such as a release comes in, into the cache."""

import atexit
import errno
import hashlib
import lzma
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

from roformer_tf.checkpoint.damage import check_file, largest_size
from roformer_tf.checkpoint.model_files import is_model, needed_files
from roformer_tf.checkpoint.original_files import nothing_found
from roformer_tf.files import cache_folder, check_room, replace_files

KEPT_COPIES = 4  # of half a gigabyte each, for base models
_TEMPORARY = {}  # the key of a copy -> its temporary folder, if there is no cache
_BLOCK = 2**20
_DAMAGES = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    NotImplementedError, OverflowError, IndexError, UnicodeDecodeError, OSError,
)  # fmt: skip
_COPY = "Fetch or copy it again from its source."


def split_zip(path):
    """Splits `folder/x.zip/inner` into the archive and the folder in it.

    Returns:
        Tuple of path and str, or `None` if no part of `path` is a `.zip` file.
    """
    for archive in (path, *path.parents):
        if archive.suffix.lower() == ".zip" and archive.is_file():
            return archive, path.relative_to(archive).as_posix().removeprefix(".")
    return None


def unpack(archive, inner=""):
    """Unpacks the files of one model, unless a copy of them is in the cache.

    The copy is in `unpacked` in the cache folder (`ROFORMER_TF_CACHE`), where the four that were
    used last are kept. If that variable is empty, or the folder cannot be written, the copy is a
    temporary one, which is removed when the process ends. Nothing else in the archive is unpacked.

    Args:
        archive: Path. A `.zip` file.
        inner: str. Name of the model's folder in it. Not needed if there is only one.

    Returns:
        Path of the folder, under the name that it has in the archive.

    Raises:
        FileNotFoundError: If there is no model in the archive or in the folder `inner`.
        ValueError: If the archive is damaged; has names that lead elsewhere, links, encrypted
            files or files that are far larger than their compressed form; or holds several models.
        OSError: If there is not enough room on the disk.
    """
    check_file(archive, "it holds a model.")
    try:
        with zipfile.ZipFile(archive) as stored:
            members = _checked_members(archive, stored)
            folder = _choose(archive, inner, members)
            names = [name.removeprefix(folder) for name in members if name.startswith(folder)]
            files = {name: members[f"{folder}{name}"] for name in needed_files(names)}
            key, name = _key(archive, folder)
            place = next((p for p in _places(key) if _is_complete(p / name, files)), None)
            if place is None:
                _check_sizes(archive, files.values())
                place = _new_place(key)
                _write(stored, files, place / name)
    except _DAMAGES as error:
        # EINVAL comes of an impossible offset in the archive
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError(
            f"{archive} is damaged, cut off ({archive.stat().st_size:,} bytes) or of a kind that "
            f"cannot be read: {str(error).rstrip('.') or type(error).__name__}. {_COPY}"
        ) from error
    with suppress(OSError):
        os.utime(place)
        if place not in _TEMPORARY.values():
            # remove the copies that were not used for the longest time
            copies = place.parent.iterdir()
            copies = sorted(copies, key=lambda path: (path == place, path.stat().st_mtime))
            for old in copies[:-KEPT_COPIES]:
                shutil.rmtree(old, ignore_errors=True)
    return place / name


def _checked_members(archive, stored):
    """Returns the files of an archive by name. Raises `ValueError` if one of them is unsafe."""
    members = {}
    for info in stored.infolist():
        name = info.filename
        parts = PurePosixPath(name).parts
        kind = stat.S_IFMT(info.external_attr >> 16)
        if ".." in parts or name.startswith("/") or "\\" in name or ":" in name or "\0" in name:
            raise ValueError(
                f"{archive} is refused: it has a file named {name!r:.100}, which leads out of the "
                f"folder that it is unpacked to. Nothing was unpacked. {_COPY}"
            )
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(
                f"{archive} is refused: {name!r:.100} is a link or a device, not a file. Nothing "
                f"was unpacked. {_COPY}"
            )
        if name in members:
            raise ValueError(f"{archive} is damaged: it has {name!r:.100} twice. {_COPY}")
        if not info.is_dir():
            members[name] = info
    if sum(info.compress_size for info in members.values()) > archive.stat().st_size:
        raise ValueError(
            f"{archive} is refused: its files share their bytes, as those of a zip bomb do. "
            f"Nothing was unpacked. {_COPY}"
        )
    return members


def _choose(archive, inner, members):
    """Returns the folder of the model, with a slash at its end, or an empty string for the top."""
    folders = {}
    for name in members:
        head, slash, tail = name.rpartition("/")
        if not name.startswith("__MACOSX/"):  # where macOS puts a file of attributes for each file
            folders.setdefault(head + slash, []).append(tail)
    models = sorted(folder for folder, names in folders.items() if is_model(names))
    names = ", ".join(str(archive / folder) for folder in models)
    if inner:
        if f"{inner}/" in models:
            return f"{inner}/"
        raise FileNotFoundError(
            f"{archive} has no model in a folder {inner!r}. "
            + (f"Models in it: {names}." if models else nothing_found(archive, members))
        )
    if not models:
        raise FileNotFoundError(nothing_found(archive, members))
    if len(models) > 1:
        raise ValueError(f"{archive} holds {len(models)} models. Name one of them: {names}.")
    return models[0]


def _check_sizes(archive, files):
    for info in files:
        # weights hardly shrink, and text shrinks to a third; deflate makes a thousandth of zeros
        if info.file_size > largest_size(info.compress_size):
            raise ValueError(
                f"{archive} is refused: {info.filename!r:.100} unpacks to {info.file_size:,} bytes "
                f"out of {info.compress_size:,}, as a zip bomb does. Nothing was unpacked. {_COPY}"
            )


def _key(archive, folder):
    """Returns a digest of the archive's path, size and time and of the folder; and its name."""
    about = archive.stat()
    made_from = f"{archive.resolve()}\n{about.st_size}\n{about.st_mtime_ns}\n{folder}"
    key = hashlib.sha256(made_from.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return key, folder.rstrip("/").rpartition("/")[2] or archive.stem


def _places(key):
    """Lists the folders that may have a copy: in the cache, and a temporary one."""
    cache = cache_folder()
    places = [] if cache is None else [cache / "unpacked" / key]
    return places + [_TEMPORARY[key]] if key in _TEMPORARY else places


def _new_place(key):
    for place in _places(key):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place
    if key not in _TEMPORARY:
        _TEMPORARY[key] = Path(tempfile.mkdtemp(prefix="roformer_tf_unpacked_"))
        atexit.register(shutil.rmtree, _TEMPORARY[key], ignore_errors=True)
    return _TEMPORARY[key]


def _is_complete(target, files):
    with suppress(OSError):
        return all((target / name).stat().st_size == info.file_size for name, info in files.items())
    return False


def _write(stored, files, target):
    try:
        check_room(target, sum(info.file_size for info in files.values()))
        with replace_files(target, whole=True) as temporary:
            for name, info in files.items():
                file = temporary / name
                file.parent.mkdir(parents=True, exist_ok=True)
                # stops at the size that was checked, and compares the CRC
                with stored.open(info) as source, open(file, "wb") as copy:
                    shutil.copyfileobj(source, copy, _BLOCK)
                if file.stat().st_size != info.file_size:
                    raise zipfile.BadZipFile(f"{info.filename!r:.100} is cut off")
    except BaseException:
        with suppress(OSError):
            target.parent.rmdir()  # fails if there is an older copy
        raise
