"""Tables of earlier runs, kept on disk, since making those of jieba's dictionary takes seconds."""

import contextlib
import hashlib
import json
import os
import unicodedata
from pathlib import Path

from roformer_tf.text.build_tables import build_tables
from roformer_tf.text.segmentation_dictionary import (
    SegmentationDictionary,
    dictionary_digest,
    list_user_words,
)
from roformer_tf.text.tokenizer_tables import TABLES_FORMAT, TokenizerTables

KEPT_FILES = 8  # of about 7 MB
SMALL = 50_000  # a dictionary of fewer words, or none, is quicker to walk through than to look up


def cache_folder():
    """Where tables are kept, or None for nowhere.

    The environment variable `ROFORMER_TF_CACHE` names the folder; set but empty, nothing is kept.
    Otherwise it is `roformer_tf` in the user's cache folder (`XDG_CACHE_HOME` or `~/.cache`).
    """
    folder = os.environ.get("ROFORMER_TF_CACHE")
    if folder is not None:
        return Path(folder).expanduser() if folder else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roformer_tf"


def cached_tables(
    vocabulary, word_level, dictionary, user_words, lowercase, unk_token, word_maxlen
):
    """The tables of a tokenizer: made, or taken from the cache when nothing has changed.

    Args:
        vocabulary: `Vocabulary`.
        dictionary: a `SegmentationDictionary`, or the path of a dictionary file or None for the one
            of jieba, to which `user_words` are added.
        word_level, lowercase, unk_token, word_maxlen: as of `RoFormerTokenizer`.

    Returns:
        TokenizerTables.
    """
    if not word_level:
        return build_tables(vocabulary, None, lowercase, unk_token, word_maxlen)
    if isinstance(dictionary, SegmentationDictionary):
        return build_tables(vocabulary, dictionary, lowercase, unk_token, word_maxlen)
    folder = cache_folder()
    if folder:
        made_from = [
            *(TABLES_FORMAT, unicodedata.unidata_version, vocabulary.digest()),
            *(dictionary_digest(dictionary), list_user_words(user_words)),
            *(lowercase, unk_token, word_maxlen),
        ]
        key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        path = folder / f"tokenizer_tables_{key[:32]}.npz"
        # a file that is damaged or went away meanwhile is as good as none
        with contextlib.suppress(OSError, ValueError):
            return TokenizerTables.load(path)
    dictionary = SegmentationDictionary(dictionary, user_words)
    tables = build_tables(vocabulary, dictionary, lowercase, unk_token, word_maxlen)
    if folder and len(dictionary.frequencies) >= SMALL:
        # a folder that cannot be written to costs time, not the result
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tables.save(path)
            kept = sorted(folder.glob("tokenizer_tables_*.npz"), key=os.path.getmtime)
            for old in kept[:-KEPT_FILES]:
                old.unlink()
    return tables
