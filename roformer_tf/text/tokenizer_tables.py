"""The arrays that `GraphTokenizer` looks up: building them, and keeping them in files.

What bert4keras and jieba do with each character comes from Python's own Unicode data. ICU and
TensorFlow Text follow other versions of Unicode and fold more characters than `str.lower` does.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import re
import unicodedata
from pathlib import Path

import numpy as np

from roformer_tf.checkpoint.damage import check_file
from roformer_tf.checkpoint.vocabulary import CJK_BLOCKS, is_cjk, is_punctuation
from roformer_tf.files import cache_folder, replace_file
from roformer_tf.text.segmentation_dictionary import (
    SegmentationDictionary,
    dictionary_digest,
    list_user_words,
)

# Kinds of characters, and the symbols of characters without a symbol of their own. HAN is only a
# symbol: an ISOLATED character in the range that jieba treats as Chinese.
CONTROL, SPACE, ISOLATED, LETTER, HAN = range(1, 6)
CODE_POINTS = 0x110000
JIEBA_HAN = slice(0x4E00, 0x9FD6)
IN_BLOCK = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]")  # jieba.re_han_default
ALPHANUMERIC = re.compile(r"[a-zA-Z0-9]")  # jieba.re_eng
FINAL_SIGMA, SIGMA, CAPITAL_SIGMA = "\u03c2", "\u03c3", "\u03a3"

TABLES_FORMAT = 1  # raise it when the meaning of the arrays changes: older files are then rejected
FIRST_NAMED = HAN + 1  # lower symbols are kinds, for characters without a symbol of their own
KEPT_FILES = 8  # of about 7 MB each
SMALL = 50_000  # a dictionary with fewer words is quicker to build from than to look up


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizerTables:
    """The arrays that `GraphTokenizer` looks up. `build_tables` builds them.

    Text becomes *symbols*, one for each normalized character. A trie over symbols finds words of
    the dictionary and wordpieces of the vocabulary. Each match is an *entry*: a symbol, [UNK], a
    word or a wordpiece. An entry has ids, and for each id the span of the entry that it covers.

    Attributes:
        char_page, char_code: Two-stage table, code point -> symbol, or -k for expansion k.
        case_page, case_code: Two-stage table, code point -> 1 cased, 2 case-ignorable, 0 neither.
        expand_start, expand_count, expand_symbols: The symbols of each expansion, a character
            whose normalized form is not one character.
        symbol_kind, symbol_block, symbol_alnum: Properties of the symbols: kind; whether jieba
            segments it together with others; whether it is one of [a-zA-Z0-9].
        edge_key, edge_child: The tries, (node * number of symbols + symbol) -> node. A node that
            ends a word or wordpiece has the number of its entry, other nodes have higher ones.
        roots: `(3,)`. Roots of the tries of words, first wordpieces, and later wordpieces.
        entry_start, entry_count: For each entry, where its ids are in the next three arrays.
        entry_ids, entry_begin, entry_end: Token ids, and the symbols they cover, counted from the
            start of the entry.
        entry_score: `log(frequency) - log(total)`, jieba's float64 value.
        unknown_score: Score of a character that is not a word.
        unk_entry, final_sigma: The entry of [UNK]; the symbol of a final sigma.
        word_level, lowercase, word_maxlen: Arguments of the tokenizer.
        words, frequencies, total: The dictionary: a JSON list of words as UTF-8 bytes, their
            frequencies, and the number to divide these by.
        vocabulary_digest: SHA-256 of the vocabulary.
    """

    char_page: np.ndarray
    char_code: np.ndarray
    case_page: np.ndarray
    case_code: np.ndarray
    expand_start: np.ndarray
    expand_count: np.ndarray
    expand_symbols: np.ndarray
    symbol_kind: np.ndarray
    symbol_block: np.ndarray
    symbol_alnum: np.ndarray
    edge_key: np.ndarray
    edge_child: np.ndarray
    roots: np.ndarray
    entry_start: np.ndarray
    entry_count: np.ndarray
    entry_ids: np.ndarray
    entry_begin: np.ndarray
    entry_end: np.ndarray
    entry_score: np.ndarray
    unknown_score: np.ndarray
    unk_entry: np.ndarray
    final_sigma: np.ndarray
    word_level: np.ndarray
    lowercase: np.ndarray
    word_maxlen: np.ndarray
    words: np.ndarray
    frequencies: np.ndarray
    total: np.ndarray
    vocabulary_digest: np.ndarray

    def dictionary(self):
        """Returns the `SegmentationDictionary` in the tables, or None at character level."""
        if not self.word_level:
            return None
        words = json.loads(self.words.tobytes())
        frequencies = dict(zip(words, self.frequencies.tolist(), strict=True))
        return SegmentationDictionary.from_frequencies(frequencies, int(self.total))

    def save(self, path):
        """Writes all arrays to one compressed file, atomically."""
        about = {"tables_format": np.int32(TABLES_FORMAT), "digest": _digest(vars(self))}
        with replace_file(path) as file:
            np.savez_compressed(file, **about, **vars(self))

    @classmethod
    def load(cls, path):
        """Reads a file that `save` wrote.

        Raises:
            ValueError: If the file is not such a file, or was written by another version.
        """
        check_file(Path(path), "it holds the tables of the tokenizer.")
        with open(path, "rb") as file:  # np.load would not close a damaged file
            try:
                with np.load(file, allow_pickle=False) as npz:
                    arrays = dict(npz)
            except Exception as error:  # zipfile, zlib and NumPy raise many kinds
                raise ValueError(
                    f"{os.fspath(path)!r} is damaged, or does not hold tokenizer tables ({error}). "
                    "Delete it: the tables are rebuilt from the vocabulary."
                ) from error
        found = arrays.pop("tables_format", None)
        digest = arrays.pop("digest", None)  # older files have none
        if digest is not None and digest != _digest(arrays):
            raise ValueError(
                f"{os.fspath(path)!r} is damaged: its arrays are not those that were saved. "
                "Delete it: the tables are rebuilt from the vocabulary."
            )
        if found != TABLES_FORMAT or set(arrays) != {f.name for f in dataclasses.fields(cls)}:
            raise ValueError(
                f"{os.fspath(path)!r} holds tables of format {found}; expected {TABLES_FORMAT}. "
                "Delete it: the tables are rebuilt from the vocabulary."
            )
        return cls(**arrays)


def _digest(arrays):
    """Returns the SHA-256 of arrays by their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return np.array(digest.hexdigest())


def load_or_build_tables(vocabulary, dictionary, user_words, *options):
    """Loads the tables of a word-level tokenizer from the cache, or builds them; see `build_tables`.

    `dictionary` is the path of a dictionary file, or None for jieba's. `user_words` are added to it.
    """
    folder = cache_folder()
    if folder:
        made_from = [TABLES_FORMAT, unicodedata.unidata_version, vocabulary.digest()]
        made_from += [dictionary_digest(dictionary), list_user_words(user_words), *options]
        key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        path = folder / f"tokenizer_tables_{key[:32]}.npz"
        # rebuild if the file is missing or damaged
        with contextlib.suppress(OSError, ValueError):
            return TokenizerTables.load(path)
    dictionary = SegmentationDictionary(dictionary, user_words)
    tables = build_tables(vocabulary, dictionary, *options)
    if folder and len(dictionary.frequencies) >= SMALL:
        # the tables are right even if they cannot be kept
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tables.save(path)
            kept = sorted(folder.glob("tokenizer_tables_*.npz"), key=os.path.getmtime)
            for old in kept[:-KEPT_FILES]:
                old.unlink()
    return tables


def build_tables(vocabulary, dictionary, lowercase, unk_token, word_maxlen):
    """Builds the tables. Takes about four seconds with jieba's own dictionary.

    Args:
        vocabulary: `Vocabulary`.
        dictionary: `SegmentationDictionary`, or None for character level.
        lowercase, unk_token, word_maxlen: Arguments of `RoFormerTokenizer`.
    """
    digest, vocabulary = vocabulary.digest(), vocabulary.ids
    word_level = dictionary is not None
    frequencies = dictionary.frequencies if word_level else {}
    total = dictionary.total if word_level else 1
    unk = vocabulary[unk_token]
    kind = character_kinds()
    image = normalized_images() if lowercase else {}

    # -- characters -> symbols
    named = {chr(c) for c in range(32, 127)}.union(*vocabulary, *frequencies)
    named = sorted(c for c in named if ord(c) not in image and not 0xD800 <= ord(c) < 0xE000)
    symbol = {c: i for i, c in enumerate(named, FIRST_NAMED)}
    n_symbols = FIRST_NAMED + len(named)
    code = kind.copy()
    code[JIEBA_HAN] = HAN
    code[[ord(c) for c in named]] = np.arange(FIRST_NAMED, n_symbols)
    expansions = {}
    for c, out in sorted(image.items()):
        symbols = tuple(int(code[ord(o)]) for o in out)
        if len(symbols) == 1:
            code[c] = symbols[0]
        else:  # an empty expansion is a nonspacing mark
            code[c] = -expansions.setdefault(symbols, len(expansions) + 1)

    # -- entries: symbols, [UNK], words, wordpieces; ids are (id, begin, end)
    ids = [()] * n_symbols
    for generic in (ISOLATED, LETTER, HAN):
        ids[generic] = ((unk, 0, 1),)
    for char, sym in symbol.items():
        # at word level the character is looked up as a word before BERT would drop it
        if kind[ord(char)] in (ISOLATED, LETTER) or word_level and char in vocabulary:
            ids[sym] = ((vocabulary.get(char, unk), 0, 1),)
    unk_entry = len(ids)
    ids.append(((unk, 0, 1),))
    scores = [0.0] * len(ids)

    usable = {c for c in named if IN_BLOCK.match(c)}
    words = [w for w, f in frequencies.items() if f and usable.issuperset(w)]
    for word in words:
        if word in vocabulary:
            ids.append(((vocabulary[word], 0, len(word)),))
        else:
            ids.append(_basic_tokenize(word, kind, vocabulary, unk, word_maxlen))
    log_total = math.log(total)
    scores += (math.log(frequencies[word]) - log_total for word in words)

    usable = {
        c for c in named if kind[ord(c)] == LETTER and (ALPHANUMERIC.match(c) or not word_level)
    }
    firsts = [t for t in vocabulary if t and usable.issuperset(t)]
    others = [t[2:] for t in vocabulary if t[:2] == "##" and t[2:] and usable.issuperset(t[2:])]
    ids += (((vocabulary[piece], 0, len(piece)),) for piece in firsts)
    ids += (((vocabulary["##" + piece], 0, len(piece)),) for piece in others)
    scores += [0.0] * (len(firsts) + len(others))

    roots = np.arange(3, dtype=np.int64) + len(ids)
    edge_key, edge_child = _tries(
        [*words, *firsts, *others],
        np.repeat(roots, [len(words), len(firsts), len(others)]),
        code,
        n_symbols,
        first_entry=unk_entry + 1,
        next_node=len(ids) + 3,
    )

    def flags(regex):
        return np.array([False] * FIRST_NAMED + [bool(regex.match(c)) for c in named])

    symbol_block = flags(IN_BLOCK)
    symbol_block[HAN] = True
    char_page, char_code = _two_stage(code)
    cases = case_classes() if lowercase else np.zeros(CODE_POINTS, np.int8)
    case_page, case_code = _two_stage(cases)
    expand_start, expand_count, expand_symbols = _ragged([(), *expansions])
    entry_start, entry_count, entry_parts = _ragged(ids)
    entry_parts = entry_parts.reshape(-1, 3).T
    return TokenizerTables(
        char_page=char_page,
        char_code=char_code,
        case_page=case_page,
        case_code=case_code,
        expand_start=expand_start,
        expand_count=expand_count,
        expand_symbols=expand_symbols,
        symbol_kind=np.int32(
            [0, CONTROL, SPACE, ISOLATED, LETTER, ISOLATED] + [kind[ord(c)] for c in named]
        ),
        symbol_block=symbol_block,
        symbol_alnum=flags(ALPHANUMERIC),
        edge_key=edge_key,
        edge_child=edge_child,
        roots=roots,
        entry_start=entry_start,
        entry_count=entry_count,
        entry_ids=entry_parts[0],
        entry_begin=entry_parts[1],
        entry_end=entry_parts[2],
        entry_score=np.float64(scores),
        unknown_score=np.float64(-log_total),
        unk_entry=np.int32(unk_entry),
        final_sigma=np.int32(code[ord(FINAL_SIGMA)]),
        word_level=np.bool_(word_level),
        lowercase=np.bool_(lowercase),
        word_maxlen=np.int32(word_maxlen),
        words=np.frombuffer(json.dumps(list(frequencies)).encode(), np.uint8),
        frequencies=np.fromiter(frequencies.values(), np.int64, len(frequencies)),
        total=np.int64(total),
        vocabulary_digest=np.array(digest),
    )


def _basic_tokenize(word, kind, vocabulary, unk, word_maxlen):
    """Returns ((id, begin, end), …) of a dictionary word that is not in the vocabulary.

    Punctuation and Chinese characters stand alone, runs of other characters go through WordPiece.
    jieba's blocks contain no space or control characters.
    """
    ids, position = [], 0
    for isolated, run in itertools.groupby(word, key=lambda c: kind[ord(c)] == ISOLATED):
        run = "".join(run)
        for piece in run if isolated else word_pieces(run, vocabulary, word_maxlen):
            end = position + len(piece.removeprefix("##"))
            ids.append((vocabulary.get(piece, unk), position, end))
            position = end
    return tuple(ids)


def word_pieces(word, vocabulary, word_maxlen):
    """Splits a word into wordpieces, greedy and longest match first, or returns `[word]`.

    >>> word_pieces("running", {"run", "##ning", "##n"}, word_maxlen=200)
    ['run', '##ning']

    Source: `Tokenizer._word_piece_tokenize` of bert4keras 0.11.5.
    """
    if len(word) > word_maxlen:
        return [word]
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return [word]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def _tries(strings, roots, code, n_symbols, first_entry, next_node):
    """Returns the edges of the tries, depth by depth. `strings` of one root are distinct."""
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    points = np.frombuffer("".join(strings).encode("utf-32-le"), np.uint32)
    symbols, starts = code[points].astype(np.int64), np.cumsum(lengths) - lengths
    node, alive, depth = roots.copy(), np.arange(len(strings)), 0
    keys, children = [np.int64([-1])], [np.int64([-1])]  # a lookup table cannot be empty
    while alive.size:
        key = node[alive] * n_symbols + symbols[starts[alive] + depth]
        key, edge = np.unique(key, return_inverse=True)
        child = np.full(key.size, -1, np.int64)
        ended = lengths[alive] == depth + 1
        child[edge[ended]] = first_entry + alive[ended]
        new = np.flatnonzero(child < 0)
        child[new] = next_node + np.arange(new.size)
        next_node += new.size
        node[alive] = child[edge]
        keys.append(key)
        children.append(child)
        alive, depth = alive[~ended], depth + 1
    return np.concatenate(keys), np.concatenate(children)


def _two_stage(dense):
    """Splits into pages of 256 values. Returns each page's index and the distinct pages."""
    pages = {}
    index = [pages.setdefault(page.tobytes(), len(pages)) for page in dense.reshape(-1, 256)]
    return np.int32(index), np.frombuffer(b"".join(pages), dense.dtype)


def _ragged(lists):
    """Returns start, count and concatenated values of the lists, int32."""
    count = np.fromiter(map(len, lists), np.int32, len(lists))
    start = np.cumsum(count, dtype=np.int32) - count
    return start, count, np.array([i for x in lists for i in x], np.int32)


def normalize(text):
    """Lower-cases a text, then decomposes it (NFD) and drops nonspacing marks.

    >>> normalize("Ｃafé")
    'ｃafe'

    Source: `lowercase_and_normalize` of bert4keras 0.11.5.
    """
    text = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def character_kind(char):
    r"""Classifies a character: CONTROL (dropped), SPACE, ISOLATED (its own word) or LETTER.

    >>> [character_kind(c) for c in ("\0", "\u2028", "追", "a", "€")] == [
    ...     CONTROL, SPACE, ISOLATED, LETTER, LETTER]
    True

    Source: `Tokenizer._tokenize` of bert4keras 0.11.5.
    """
    category = unicodedata.category(char)
    if is_punctuation(char) or is_cjk(char):
        return ISOLATED
    if char in " \n\r\t" or category == "Zs":
        return SPACE
    if char in "\0\ufffd" or category in ("Cc", "Cf"):
        return CONTROL
    return SPACE if char.isspace() else LETTER  # str.split() splits at U+2028 and U+2029


@functools.cache
def _individual_code_points():
    """Lists all code points that `normalize` may change or that may have a special kind.

    The million others are treated alike: unassigned, private, surrogate and Chinese ones.
    """
    return [
        c
        for c in range(CODE_POINTS)
        if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")
        and not (0x3400 <= c < 0x4DC0 or 0x4E00 <= c < 0xA000 or 0x20000 <= c < 0x2F800)
    ]


@functools.cache
def character_kinds():
    """Returns the kind of every code point, int32 `(0x110000,)`."""
    kinds = np.full(CODE_POINTS, LETTER, np.int32)
    for c in _individual_code_points():
        kinds[c] = character_kind(chr(c))
    for first, last in CJK_BLOCKS:
        kinds[first : last + 1] = ISOLATED
    kinds[0xD800:0xE000] = CONTROL  # cannot occur in UTF-8
    kinds.flags.writeable = False
    return kinds


@functools.cache
def normalized_images():
    """Maps each code point that `normalize` changes to its normalized string."""
    images = {c: normalize(chr(c)) for c in _individual_code_points()}
    return {c: image for c, image in images.items() if image != chr(c)}


@functools.cache
def case_classes():
    """Returns int8 `(0x110000,)`: 1 for cased, 2 for case-ignorable characters, 0 for others.

    They decide whether `str.lower` makes a capital sigma a final one, and come from `str.lower`.
    """
    classes = np.zeros(CODE_POINTS, np.int8)
    for c in _individual_code_points():
        if ("A" + CAPITAL_SIGMA + chr(c)).lower()[1] == SIGMA:
            classes[c] = 1
        elif ("A" + CAPITAL_SIGMA + chr(c) + "A").lower()[1] == SIGMA:
            classes[c] = 2
    classes.flags.writeable = False
    return classes
