"""The vocabulary of an original folder, and vocabulary surgery on embeddings."""

import numpy as np

from roformer_tf.checkpoint.paths import VOCABULARY_FILE, existing_file
from roformer_tf.text.vocabulary import Vocabulary


def read_vocabulary(path):
    """Reads a vocabulary file, or the `vocab.txt` of a folder.

    Args:
        path: path of the file or of the folder.

    Returns:
        `roformer_tf.text.vocabulary.Vocabulary`.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if the file is empty, not UTF-8, or only a Git LFS pointer.
    """
    return Vocabulary(vocabulary_file(path))


def vocabulary_file(path):
    """The path of the vocabulary file, which must be there."""
    folder, name = (path, VOCABULARY_FILE) if path.is_dir() else (path.parent, path.name)
    return existing_file(
        folder,
        name,
        "the tokenizer needs the vocabulary that the model was trained with, one token per line. "
        "Copy it from the release, or pass `preprocessor=None` to load the bare model.",
    )


def check_vocabulary_size(vocabulary, vocabulary_size, source):
    """Raises unless a `Vocabulary` has as many ids as the model has embeddings; `source` is where it came from."""
    if vocabulary.size != vocabulary_size:
        more = "more" if vocabulary.size > vocabulary_size else "fewer"
        raise ValueError(
            f"{source} has {vocabulary.size} tokens, {more} than the {vocabulary_size} embeddings of the model "
            "(`vocab_size` in bert_config.json, after `keep_tokens` and `compound_tokens`): one of the two belongs to "
            "another model. Put the right file in place, or pass `preprocessor=None` to load the bare model."
        )


def edited_size(vocabulary_size, keep_tokens=None, compound_tokens=None):
    """The size of the vocabulary after surgery."""
    kept = vocabulary_size if keep_tokens is None else len(keep_tokens)
    return kept + (0 if compound_tokens is None else len(compound_tokens))


def edit_rows(rows, keep_tokens=None, compound_tokens=None):
    """Vocabulary surgery on an array whose first axis counts tokens: word embeddings, output bias.

    Args:
        rows: array `(vocabulary, …)`.
        keep_tokens: ids of the tokens to keep, in their new order; `None` keeps all.
        compound_tokens: tokens to append, each the mean of others: a list of ids, a single id, or a pair
            `(ids, weights)`. Ids count *after* `keep_tokens` was applied.

    Returns:
        Array `(edited_size(…), …)` of the dtype of `rows`.

    Raises:
        ValueError: if an id is out of range or weights do not fit.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.checkpoint.vocabulary import edit_rows
    >>> edit_rows(np.array([0.0, 1.0, 2.0, 3.0]), keep_tokens=[3, 1], compound_tokens=[[0, 1]])
    array([3., 1., 2.])

    Reference: `Transformer.load_embeddings` in bert4keras' `models.py`.
    """
    if keep_tokens is not None:
        kept = _checked_ids("keep_tokens", keep_tokens, len(rows))
        rows = rows[kept]
    if compound_tokens is None:
        return rows
    result = np.empty((len(rows) + len(compound_tokens), *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    for row, item in enumerate(compound_tokens, start=len(rows)):
        ids, weights = _compound(item)
        ids = _checked_ids("compound_tokens", ids, len(rows))
        if weights is not None and (len(weights) != len(ids) or not np.sum(weights)):
            raise ValueError(
                "Every weighted entry of `compound_tokens` must be `(ids, weights)` of one length, with weights "
                f"that do not sum to 0. Received: {item!r}"
            )
        result[row] = np.average(rows[ids].astype("float64"), axis=0, weights=weights)
    return result


def _compound(item):
    if isinstance(item, (int, np.integer)):
        return [item], None
    if isinstance(item, tuple):
        ids, weights = item
        return ([ids], None) if isinstance(ids, (int, np.integer)) else (ids, weights)
    return item, None


def _checked_ids(name, ids, size):
    ids = np.asarray(ids)
    if ids.ndim != 1 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"`{name}` must hold non-empty lists of token ids. Received: {ids.tolist()!r}"
        )
    wrong = ids[(ids < 0) | (ids >= size)]
    if wrong.size:
        raise ValueError(
            f"`{name}` must hold ids from 0 to {size - 1}"
            f"{', counted after `keep_tokens`' if name == 'compound_tokens' else ''}. "
            f"Received: {wrong[:10].tolist()}"
        )
    return ids
