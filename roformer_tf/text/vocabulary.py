"""Vocabulary files of the original: reading, writing, thinning out."""

import hashlib
import os
import unicodedata

# The blocks that BERT treats as CJK; `Tokenizer._is_cjk_character` of bert4keras
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

    Every ASCII character that is no letter, digit, space or control counts, `$` and `^` too.

    >>> is_punctuation("。"), is_punctuation("$"), is_punctuation("€")
    (True, True, False)
    """
    code = ord(char)
    return (
        33 <= code <= 47
        or 58 <= code <= 64
        or 91 <= code <= 96
        or 123 <= code <= 126
        or unicodedata.category(char).startswith("P")
    )


def load_vocabulary(path):
    r"""Reads a vocabulary file as the original does.

    The first field of each line is a token, its id the number of distinct tokens before it.  So a
    token that comes a second time takes the id of the *next* new token, and both share it; an
    empty line is the token `""`.

    Args:
        path: str or path-like. A UTF-8 text file, one token a line.

    Returns:
        dict of token -> id, in the order of the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is empty or not UTF-8.

    Example:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "vocab.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("[PAD]\n[UNK]\n追一\t1207\n")
    >>> load_vocabulary(path)
    {'[PAD]': 0, '[UNK]': 1, '追一': 2}

    Source: `load_vocab` of bert4keras 0.11.5.
    """
    return assign_ids(read_tokens(path))


def read_tokens(path):
    """The tokens of a vocabulary file, one for each line."""
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There is no vocabulary file {path!r}. An original checkpoint has it as `vocab.txt` "
            "beside `bert_config.json`; give the path of that file."
        )
    try:
        with open(path, encoding="utf-8") as file:
            tokens = [(line.split() or [""])[0] for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The vocabulary file {path!r} must be UTF-8 text; byte {error.start} is not. "
            "Convert it, or check that it is no checkpoint or archive."
        ) from error
    if not any(tokens):
        raise ValueError(
            f"The vocabulary file {path!r} has no tokens; expected one a line. "
            "Fetch it again: the file of a released checkpoint has 12,000 to 60,000 lines."
        )
    return tokens


def assign_ids(tokens):
    """Dict of token -> id: the number of distinct tokens before its last appearance.

    >>> assign_ids(["a", "b", "a", "c"])
    {'a': 2, 'b': 1, 'c': 2}
    """
    ids = {}
    for token in tokens:
        ids[token] = len(ids)
    return ids


def list_tokens(ids):
    """The inverse of `assign_ids`: the lines of a file that gives these ids.

    Raises:
        ValueError: no vocabulary file gives these ids.

    >>> list_tokens({"[PAD]": 0, "[UNK]": 1})
    ['[PAD]', '[UNK]']
    """
    again = {}
    for place, (token, i) in enumerate(ids.items()):
        if i != place:
            again.setdefault(i, []).append(token)
    tokens = []
    for place, token in enumerate(ids, 1):
        tokens += [token, *again.get(place, ())]
    if assign_ids(tokens) != ids:
        # not as read from a file: the order of the ids is all that is left
        tokens = sorted(ids, key=ids.get)
        if assign_ids(tokens) != ids:
            raise ValueError(
                "A mapping of tokens to ids must number them 0, 1, 2, … without a gap, or be the "
                "result of `load_vocabulary`. Pass the path of the vocabulary file, or the list "
                f"of its tokens. Received ids from {min(ids.values())} to {max(ids.values())} "
                f"for {len(ids)} tokens"
            )
    return tokens


def simplify_vocabulary(vocabulary, startswith=("[PAD]", "[UNK]", "[CLS]", "[SEP]")):
    """Drops the tokens that the character-level tokenizer cannot give.

    These are tokens of several characters with a Chinese character or punctuation among them, such
    as `##的` and `[unused1]`: not for word level, which needs the Chinese words.

    Args:
        vocabulary: path, list of tokens, or dict of token -> id.
        startswith: tokens that come first in the result, whatever they look like.

    Returns:
        vocabulary: dict of token -> new id; keep_tokens: list of the old ids in the new order, the
        rows of an embedding matrix to keep.

    Raises:
        ValueError: a token of `startswith` is not in the vocabulary.

    Example:

    >>> simplify_vocabulary(["[PAD]", "[unused1]", "[UNK]", "的", "##的", "a"], ["[PAD]", "[UNK]"])
    ({'[PAD]': 0, '[UNK]': 1, '的': 2, 'a': 3}, [0, 2, 3, 5])

    Source: `load_vocab(simplified=True)` of bert4keras 0.11.5.
    """
    ids = vocabulary_ids(vocabulary)
    missing = [token for token in startswith if token not in ids]
    if missing:
        raise ValueError(
            f"`startswith` names tokens that are not in the vocabulary: {missing}. Pass tokens of "
            "the vocabulary, or an empty list."
        )
    tokens = [*startswith]
    tokens += (
        token
        for token in sorted(ids, key=ids.get)
        if token not in startswith and not _is_redundant(token)
    )
    return assign_ids(tokens), [ids[token] for token in tokens]


def _is_redundant(token):
    stem = token[2:] if token[:2] == "##" else token
    return len(token) > 1 and any(is_cjk(c) or is_punctuation(c) for c in stem)


def vocabulary_tokens(vocabulary):
    """-> list of tokens, one a line, from a path, a list of tokens or a dict of token -> id."""
    if isinstance(vocabulary, str | os.PathLike):
        return read_tokens(vocabulary)
    if isinstance(vocabulary, dict):
        return list_tokens(vocabulary)
    tokens = list(vocabulary)
    if not tokens:
        raise ValueError("The vocabulary is empty; expected a list of tokens.")
    wrong = next(
        (t for t in tokens if not isinstance(t, str) or len(t.split()) > 1 or t.strip() != t), None
    )
    if wrong is not None:
        raise ValueError(
            "Every token of the vocabulary must be a string without white space, as in a "
            f"vocabulary file. Received: {wrong!r}"
        )
    return tokens


def vocabulary_ids(vocabulary):
    """-> dict of token -> id, from a path, a list of tokens or a dict of token -> id."""
    if isinstance(vocabulary, dict):
        return dict(vocabulary)
    return assign_ids(vocabulary_tokens(vocabulary))


def has_words(ids):
    """Whether a vocabulary holds Chinese words: the mark of a word-level checkpoint.

    >>> has_words({"[PAD]": 0, "追一": 1}), has_words({"[PAD]": 0, "追": 1, "##追": 2})
    (True, False)
    """
    return any(len(t) > 1 and all(map(is_cjk, t)) for t in ids)


class Vocabulary:
    """Tokens and their ids.

    Args:
        vocabulary: path, list of tokens, or dict of token -> id.

    Attributes:
        tokens: list of str, one for each line of a vocabulary file.
        ids: dict of token -> id; of two tokens that share an id the later one is its token.
        size: int, one more than the highest id.

    Example:

    >>> vocabulary = Vocabulary(["[PAD]", "[UNK]", "追一"])
    >>> vocabulary.size, vocabulary.ids["追一"], vocabulary.token(2)
    (3, 2, '追一')
    """

    def __init__(self, vocabulary):
        self.tokens = vocabulary_tokens(vocabulary)
        self.ids = assign_ids(self.tokens)
        self.size = max(self.ids.values()) + 1
        self._token_of = {i: token for token, i in self.ids.items()}

    def token(self, i):
        """The token of an id; None for an id that a repeated line has left without one."""
        return self._token_of.get(i)

    def digest(self):
        """SHA-256 of the tokens, in hexadecimal digits."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()
