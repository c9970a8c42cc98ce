"""The files of a model: which ones loading reads, and their digests in `SHA256SUMS`."""

import fnmatch
import hashlib
import os
import re
from pathlib import PurePath

from roformer_tf.checkpoint.damage import check_file
from roformer_tf.checkpoint.hugging_face import HF_CONFIG_FILE, INDEX, WEIGHTS_FILES
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE

DIGESTS_FILE = "SHA256SUMS"
CARD_FILE = "README.md"  # not checked, since people may edit it
_SETTINGS = ("*.json", VOCABULARY_FILE, "checkpoint", DIGESTS_FILE)
_PRESET_WEIGHTS = ("*.weights.h5", "*.weights_*.h5")
_ORIGINAL_WEIGHTS = ("*.index", "*.data-*-of-*")
_WEIGHTS = ("*.h5", "*.safetensors", "*.bin", *_ORIGINAL_WEIGHTS)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def is_model(names):
    """Whether the files of a folder, of which these are the names, look like a model."""
    return any(_is(name, (CONFIG_FILE, HF_CONFIG_FILE, "*.index")) for name in names)


def needed_files(names, weights=True):
    """Selects the files that loading a model reads, from the names of all in its folder.

    A release may hold the same weights in several forms. Only one of them is read.

    >>> release = ["config.json", "vocab.txt", "pytorch_model.bin", "tf_model.h5", "logo.png"]
    >>> needed_files(release)
    ['config.json', 'vocab.txt', 'tf_model.h5']
    >>> needed_files(release, weights=False)
    ['config.json', 'vocab.txt']
    """
    top = [name for name in names if "/" not in name]
    needed = [name for name in top if _is(name, _SETTINGS)]
    needed += [name for name in names if _is(name, ("assets/*",))]  # and those in folders below
    if not weights:
        return needed
    if any(_is(name, _PRESET_WEIGHTS) for name in top):
        patterns = _PRESET_WEIGHTS
    elif any(_is(name, (CONFIG_FILE, "*.index")) for name in top):
        patterns = _ORIGINAL_WEIGHTS
    else:
        patterns = [name for name in WEIGHTS_FILES if name in top][:1]
        if patterns and patterns[0].endswith(INDEX):
            patterns = ["*" + PurePath(patterns[0].removesuffix(INDEX)).suffix]  # the shards
    return needed + [name for name in top if _is(name, patterns)]


def _is(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def add_digests(new, folder, stale=()):
    """Writes `SHA256SUMS` for new files, before they are moved to a folder.

    Files of the folder that stay, which do not match `stale`, keep their digests. `sha256sum --check
    SHA256SUMS` checks them without this package.
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
    if not os.path.lexists(folder / DIGESTS_FILE):
        return
    for name, digest in read_digests(folder).items():
        file = folder / name
        if name == CARD_FILE or (not weights and _is(file.name, _WEIGHTS)):
            continue
        # only names are checked: the files may be links, as in the cache of the Hugging Face hub
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
