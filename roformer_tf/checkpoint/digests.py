"""Digests of the files of a model, as `sha256sum` writes them: they show every later change."""

import fnmatch
import hashlib
import os
import re
from pathlib import PurePath

from roformer_tf.checkpoint.damage import check_file

DIGESTS_FILE = "SHA256SUMS"
CARD_FILE = "README.md"  # for people, who may edit it
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_WEIGHTS = (".h5", ".safetensors", ".bin", ".index")


def add_digests(new, folder, stale=()):
    """Writes `SHA256SUMS` for new files, before they are moved to a folder.

    Files of the folder that stay keep their digests. `sha256sum --check SHA256SUMS` checks them
    without this package.

    Args:
        new: Path. The new files.
        folder: Path. Where they are moved.
        stale: tuple of str. Patterns of the files of `folder` that are removed.
    """
    digests = {}
    if (folder / DIGESTS_FILE).is_file():
        replaced = (*(path.name for path in new.iterdir()), *stale)
        for name, digest in read_digests(folder).items():
            top = name.split("/")[0]
            if not any(fnmatch.fnmatch(top, pattern) for pattern in replaced):
                digests[name] = digest
    for path in new.rglob("*"):
        if path.is_file() and path.name != DIGESTS_FILE:
            digests[path.relative_to(new).as_posix()] = file_digest(path)
    text = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    (new / DIGESTS_FILE).write_text(text, encoding="utf-8", newline="\n")


def read_digests(folder):
    """Returns the digests of a folder by the names of the files.

    Raises:
        ValueError: If the file is damaged.
    """
    file = folder / DIGESTS_FILE
    check_file(file, "it holds digests of the model's files. Without it nothing is checked.")
    text = file.read_bytes().decode("utf-8", errors="replace")
    matches = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not matches or None in matches:
        raise ValueError(
            f"{file} is damaged: expected lines such as those of `sha256sum`. Copy the folder "
            "again; or delete this file to load the model without a check."
        )
    return {match[2]: match[1] for match in matches}


def check_digests(folder, weights=True):
    """Raises an error if a file has changed since it was saved. Does nothing without `SHA256SUMS`.

    Args:
        folder: Path.
        weights: bool. Whether to check the files of weights, too, which takes some 0.5 s per GB.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If the content of a file has changed.
    """
    if not (folder / DIGESTS_FILE).is_symlink() and not (folder / DIGESTS_FILE).exists():
        return
    for name, digest in read_digests(folder).items():
        file = folder / name
        is_weights = file.suffix in _WEIGHTS or ".data-" in file.name
        if name == CARD_FILE or (is_weights and not weights):
            continue
        # links may lead elsewhere, as those in the cache of the Hugging Face hub do
        if os.path.isabs(name) or ".." in PurePath(name).parts:
            raise ValueError(f"{folder / DIGESTS_FILE} names a file outside of its folder: {name}")
        check_file(file, f"it was saved with the model ({DIGESTS_FILE} has its digest).")
        if file_digest(file) != digest:
            raise ValueError(
                f"{file} has changed since it was saved: its SHA-256 is not that of "
                f"{DIGESTS_FILE}. Copy it again from where it was saved. If you changed it on "
                f"purpose, delete its line in {folder / DIGESTS_FILE}."
            )


def file_digest(file):
    """Returns the SHA-256 of a file as a string."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
