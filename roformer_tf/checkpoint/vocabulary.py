"""Reads vocabularies, numbers their tokens, and selects the embeddings that belong to them."""

import hashlib
import os
import string
import unicodedata
from pathlib import Path

import numpy as np

from roformer_tf.checkpoint.damage import check_file

# The blocks that BERT treats as CJK; see `Tokenizer._is_cjk_character` of bert4keras
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_cjk(char):
    """Whether BERT treats a character as Chinese, so that it stands alone.

    >>> is_cjk("追"), is_cjk("あ"), is_cjk("a")
    (True, False, False)
    """
    return any(first <= ord(char) <= last for first, last in CJK_BLOCKS)


def is_punctuation(char):
    """Whether BERT treats a character as punctuation, so that it stands alone.

    Any ASCII character that is not a letter, digit, space or control character counts, even `$`.

    >>> is_punctuation("。"), is_punctuation("$"), is_punctuation("€")
    (True, True, False)
    """
    return char in string.punctuation or unicodedata.category(char).startswith("P")


def is_redundant(token):
    """Whether a character-level tokenizer cannot produce a token.

    >>> is_redundant("##的"), is_redundant("[unused1]"), is_redundant("的")
    (True, True, False)
    """
    return len(token) > 1 and any(is_cjk(c) or is_punctuation(c) for c in token.removeprefix("##"))


def load_vocabulary(path, encoding="utf-8"):
    r"""Reads a vocabulary file as the original does.

    The first field of each line is a token. Its id is the number of distinct tokens before it, so a
    repeated token shares the id of the *next* new token. An empty line is the token `""`.

    Args:
        path: str or path. A text file with one token per line.
        encoding: str. Encoding of the file.

    Returns:
        dict. Maps tokens to ids, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is empty, not in its encoding, or only a Git LFS pointer.

    Example:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "vocab.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("[PAD]\n[UNK]\n追一\t1207\n")
    >>> load_vocabulary(path)
    {'[PAD]': 0, '[UNK]': 1, '追一': 2}

    Source: `load_vocab` of bert4keras 0.11.5.
    """
    return assign_ids(_read_tokens(path, encoding))


def _read_tokens(path, encoding="utf-8"):
    """Returns the tokens of a vocabulary file, one per line."""
    check_file(
        Path(path),
        "it is the vocabulary. Checkpoints have one, `vocab.txt`, with one token per line: copy it "
        "from the release. To load a model without it, pass `preprocessor=None`.",
    )
    path = os.fspath(path)
    try:
        with open(path, encoding=encoding) as file:
            tokens = [(line.split() or [""])[0] for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The vocabulary file {path!r} must be {encoding.upper()} text; byte {error.start} is "
            "not. Convert it, or check that it is not a checkpoint or an archive."
        ) from error
    if not any(tokens):
        raise ValueError(
            f"The vocabulary file {path!r} has no tokens; expected one per line. Download it "
            "again: released vocabularies have 12,000 to 60,000 lines."
        )
    return tokens


def assign_ids(tokens):
    """Maps each token to the number of distinct tokens before its last appearance.

    >>> assign_ids(["a", "b", "a", "c"])
    {'a': 2, 'b': 1, 'c': 2}
    """
    ids = {}
    for token in tokens:
        ids[token] = len(ids)
    return ids


def list_tokens(ids):
    """Returns the lines of a vocabulary file that gives these ids: the inverse of `assign_ids`.

    Raises:
        ValueError: If no vocabulary file gives these ids.

    >>> list_tokens({"[PAD]": 0, "[UNK]": 1})
    ['[PAD]', '[UNK]']
    """
    repeated = {}
    for position, (token, i) in enumerate(ids.items()):
        if i != position:
            repeated.setdefault(i, []).append(token)
    tokens = []
    for position, token in enumerate(ids, 1):
        tokens += [token, *repeated.get(position, ())]
    if assign_ids(tokens) != ids:
        # not in the order of a file, so order by id
        tokens = sorted(ids, key=ids.get)
        if assign_ids(tokens) != ids:
            raise ValueError(
                "A mapping of tokens to ids must number them 0, 1, 2, … without a gap, or come "
                "from `load_vocabulary`. Pass the path of the vocabulary file or a list of its "
                f"tokens. Received: {len(ids)} tokens with ids from {min(ids.values())} to "
                f"{max(ids.values())}"
            )
    return tokens


def simplify_vocabulary(vocabulary, startswith=("[PAD]", "[UNK]", "[CLS]", "[SEP]")):
    """Drops the tokens that a character-level tokenizer cannot produce.

    These are tokens of several characters with a Chinese character or punctuation, such as `##的`
    and `[unused1]`. Do not use it for word level, which needs the Chinese words.

    Args:
        vocabulary: Path, list of tokens, or dict of token to id.
        startswith: list of str. Tokens to put first and never drop.

    Returns:
        Tuple `(vocabulary, keep_tokens)`: a dict of token to new id, and the list of old ids in the
        new order.

    Raises:
        ValueError: If a token of `startswith` is not in the vocabulary.

    Example:

    >>> simplify_vocabulary(["[PAD]", "[unused1]", "[UNK]", "的", "##的", "a"], ["[PAD]", "[UNK]"])
    ({'[PAD]': 0, '[UNK]': 1, '的': 2, 'a': 3}, [0, 2, 3, 5])

    Source: `load_vocab(simplified=True)` of bert4keras 0.11.5.
    """
    ids = vocabulary if isinstance(vocabulary, dict) else Vocabulary(vocabulary).ids
    missing = [token for token in startswith if token not in ids]
    if missing:
        raise ValueError(
            f"`startswith` names tokens that are not in the vocabulary: {missing}. Pass tokens of "
            "the vocabulary, or an empty list."
        )
    tokens = [*startswith]
    for token in sorted(ids, key=ids.get):
        if token not in startswith and not is_redundant(token):
            tokens.append(token)
    return assign_ids(tokens), [ids[token] for token in tokens]


def has_words(ids):
    """Whether a vocabulary has Chinese words, as word-level checkpoints do.

    >>> has_words({"[PAD]": 0, "追一": 1}), has_words({"[PAD]": 0, "追": 1, "##追": 2})
    (True, False)
    """
    return any(len(t) > 1 and all(map(is_cjk, t)) for t in ids)


class Vocabulary:
    """Tokens and their ids.

    Args:
        vocabulary: Path, list of tokens, or dict of token to id.

    Attributes:
        tokens: list of str. One for each line of a vocabulary file.
        ids: dict. Maps tokens to ids; where two tokens share an id, `token` returns the later one.
        size: int. One more than the highest id.

    >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "追一"])
    >>> vocabulary.size, vocabulary.ids["追一"], vocabulary.token(2)
    (3, 2, '追一')
    """

    def __init__(self, vocabulary):
        if isinstance(vocabulary, str | os.PathLike):
            self.tokens = _read_tokens(vocabulary)
        elif isinstance(vocabulary, dict):
            self.tokens = list_tokens(vocabulary)
        else:
            self.tokens = list(vocabulary)
            for token in self.tokens:
                if not isinstance(token, str) or len(token.split()) > 1 or token.strip() != token:
                    raise ValueError(
                        "Every token of the vocabulary must be a string without white space, as in "
                        f"a vocabulary file. Received: {token!r}"
                    )
        if not self.tokens:
            raise ValueError("The vocabulary is empty; expected a list of tokens.")
        self.ids = assign_ids(self.tokens)
        self.size = max(self.ids.values()) + 1
        self._token_of = {i: token for token, i in self.ids.items()}

    def token(self, i):
        """Returns the token of an id, or `None` if a repeated token left the id unused."""
        return self._token_of.get(i)

    def grown(self, new):
        """Returns the tokens and some new ones. Raises `ValueError` if these get ids of others."""
        tokens = [*self.tokens, *new]
        if new and assign_ids(tokens)[new[0]] < self.size:
            raise ValueError(
                "The vocabulary repeats tokens at its end, so that a new token would get the id of "
                "another one. Remove the repeated lines at the end of its file. Received: a last "
                f"token {self.tokens[-1]!r}"
            )
        return tokens

    def digest(self):
        """Returns the SHA-256 of the tokens, in hexadecimal digits."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()


def check_has_tokens(vocabulary, tokens):
    """Raises `ValueError` if a `Vocabulary` lacks some special or added tokens."""
    missing = set(tokens) - set(vocabulary.ids)
    if missing:
        tip = "Check that the file is the checkpoint's `vocab.txt`"
        if vocabulary.tokens[0].startswith("\ufeff"):
            tip = "Its first line begins with a byte order mark: save it as UTF-8 without one"
        raise ValueError(
            f"The vocabulary lacks the special or added tokens {sorted(missing)}; it has "
            f"{vocabulary.size} tokens that begin with {vocabulary.tokens[:3]}. {tip}; or pass its "
            "own special tokens, e.g. `mask_token=None` if it has none."
        )


def check_vocabulary_size(vocabulary, vocabulary_size, source):
    """Raises `ValueError` unless the `Vocabulary` from `source` has `vocabulary_size` ids."""
    if vocabulary.size != vocabulary_size:
        more = "more" if vocabulary.size > vocabulary_size else "fewer"
        raise ValueError(
            f"{source} has {vocabulary.size} tokens, {more} than the {vocabulary_size} embeddings "
            "of the model (`vocab_size` in its settings, after `keep_tokens` and "
            "`compound_tokens`). One of the two belongs to another model: replace the wrong file, "
            "or pass `preprocessor=None` to load the model without a vocabulary."
        )


def edited_size(vocabulary_size, keep_tokens=None, compound_tokens=None):
    """Returns the size of a vocabulary of `vocabulary_size` tokens after `edit_rows`."""
    kept = vocabulary_size if keep_tokens is None else len(keep_tokens)
    return kept + (0 if compound_tokens is None else len(compound_tokens))


def edit_rows(rows, keep_tokens=None, compound_tokens=None):
    """Drops and appends rows of an array with one row per token: word embeddings or output bias.

    Args:
        rows: Array of shape `(vocabulary_size, …)`.
        keep_tokens: list of int. Ids of the tokens to keep, in their new order. `None` keeps all.
        compound_tokens: list. Tokens to append, each the mean of others: a list of ids, a single
            id, or a tuple `(ids, weights)`. The ids are those after `keep_tokens`.

    Returns:
        Array of shape `(edited_size(…), …)` and the dtype of `rows`.

    Raises:
        ValueError: If an id is out of range or weights do not match their ids.

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
    for row, item in enumerate(compound_tokens, len(rows)):
        ids, weights = item if isinstance(item, tuple) else (item, None)
        if isinstance(ids, (int, np.integer)):
            ids, weights = [ids], None
        ids = _checked_ids("compound_tokens", ids, len(rows))
        if weights is not None and (len(weights) != len(ids) or not np.sum(weights)):
            raise ValueError(
                "Every weighted entry of `compound_tokens` must be a tuple `(ids, weights)` of "
                f"equal length, with weights that do not sum to 0. Received: {item!r}"
            )
        result[row] = np.average(rows[ids].astype("float64"), axis=0, weights=weights)
    return result


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
