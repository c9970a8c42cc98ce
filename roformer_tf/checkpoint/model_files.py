"""Which files of a folder make a model: those to fetch from the hub or to unpack."""

import fnmatch

from roformer_tf.checkpoint.digests import DIGESTS_FILE
from roformer_tf.checkpoint.hugging_face import HF_CONFIG_FILE, WEIGHTS_FILES
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE

_SETTINGS = ("*.json", VOCABULARY_FILE, "checkpoint", DIGESTS_FILE)
_ASSETS = "assets/*"  # also in its folders
_PRESET_WEIGHTS = ("*.weights.h5", "*.weights_*.h5")
_ORIGINAL_WEIGHTS = ("*.index", "*.data-*-of-*")


def is_model(names):
    """Whether the files of a folder look like a model, by their names in it."""
    return any(name in (CONFIG_FILE, HF_CONFIG_FILE) or _is(name, ("*.index",)) for name in names)


def needed_files(names, weights=True):
    """Selects the files that loading the model in a folder reads.

    A release may hold the same weights in several forms. Only one of them is read.

    Args:
        names: iterable of str. Paths in the folder, separated by `/`.
        weights: bool. Whether weights are needed, or settings and vocabulary alone.

    Returns:
        List of names.

    >>> release = ["config.json", "vocab.txt", "pytorch_model.bin", "tf_model.h5", "logo.png"]
    >>> needed_files(release)
    ['config.json', 'vocab.txt', 'tf_model.h5']
    >>> needed_files(release, weights=False)
    ['config.json', 'vocab.txt']
    """
    names = list(names)
    top = [name for name in names if "/" not in name]
    needed = [name for name in top if _is(name, _SETTINGS)]
    needed += [name for name in names if fnmatch.fnmatchcase(name, _ASSETS)]
    return needed + (_weights(top) if weights else [])


def _weights(names):
    preset = [name for name in names if _is(name, _PRESET_WEIGHTS)]
    if preset:
        return preset
    if any(_is(name, (CONFIG_FILE, "*.index")) for name in names):
        return [name for name in names if _is(name, _ORIGINAL_WEIGHTS)]
    first = next((name for name in WEIGHTS_FILES if name in names), None)
    if first is None or not first.endswith(".index.json"):
        return [name for name in names if name == first]
    ending = first.removesuffix(".index.json").rpartition(".")[2]
    return [name for name in names if name.endswith(f".{ending}")]  # the shards


def _is(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
