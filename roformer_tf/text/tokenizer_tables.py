"""The vocabulary, the dictionary and the rules of characters, as arrays of integers."""

import dataclasses
import json
import os

import numpy as np

from roformer_tf.files import replace_file
from roformer_tf.text.segmentation_dictionary import SegmentationDictionary

TABLES_FORMAT = 1  # raise it when the arrays change their meaning: older files are then refused


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizerTables:
    """What `GraphTokenizer` looks up, and the file that it is kept in; `build_tables` makes it.

    Text becomes *symbols*: one for each normalised character.  A trie over symbols finds words of
    the dictionary and pieces of the vocabulary.  What was found is an *entry*: a symbol, [UNK], a
    word or a piece; an entry has ids, and for each id the part of the entry that it stands for.

    Attributes:
        char_page, char_code: two-stage table, code point -> symbol, or -k for expansion k.
        case_page, case_code: two-stage table, code point -> 1 cased, 2 case-ignorable, 0 neither.
        expand_start, expand_count, expand_symbols: the symbols of each expansion: characters whose
            normalised form is not one character.
        symbol_kind, symbol_block, symbol_alnum: properties of the symbols: kind; whether jieba
            cuts it with others; whether it is one of [a-zA-Z0-9].
        edge_key, edge_child: the tries, (node * number of symbols + symbol) -> node.  A node that
            ends a word or a piece has the number of its entry, the others higher ones.
        roots: (3,) the roots of the tries of words, of first pieces, of other pieces.
        entry_start, entry_count: for each entry, the place of its ids in the three next arrays.
        entry_ids, entry_begin, entry_end: token ids, and the symbols they stand for, counted
            from the start of the entry.
        entry_score: log(frequency) - log(total), jieba's float64 value.
        unknown_score: the score of a character that is no word.
        unk_entry, final_sigma: the entry of [UNK]; the symbol of a final sigma.
        word_level, lowercase, word_maxlen: as of the tokenizer.
        words, frequencies, total: the dictionary: JSON list of words as UTF-8 bytes, their
            frequencies, and what these are divided by.
        vocabulary_digest: SHA-256 of the tokens that the tables were made for.
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
        """The `SegmentationDictionary` that the tables were made with; None at character level."""
        if not self.word_level:
            return None
        words = json.loads(self.words.tobytes())
        frequencies = dict(zip(words, self.frequencies.tolist(), strict=True))
        return SegmentationDictionary.from_frequencies(frequencies, int(self.total))

    def save(self, path):
        """Writes all arrays to one compressed file, at once or not at all."""
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        with replace_file(path) as file:
            np.savez_compressed(file, tables_format=np.int32(TABLES_FORMAT), **arrays)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Raises:
            ValueError: not such a file, or one of another version.
        """
        with open(path, "rb") as file:  # np.load itself would not close a damaged file
            try:
                with np.load(file, allow_pickle=False) as npz:
                    arrays = dict(npz)
            except Exception as error:  # whatever zipfile, zlib and NumPy make of damage
                raise ValueError(
                    f"{os.fspath(path)!r} is no file of tokenizer tables, or a damaged one ({error}). Delete "
                    "it: the tables are made anew from the vocabulary."
                ) from error
        found = arrays.pop("tables_format", None)
        if found != TABLES_FORMAT or set(arrays) != {f.name for f in dataclasses.fields(cls)}:
            raise ValueError(
                f"{os.fspath(path)!r} holds tokenizer tables of format {found}; expected {TABLES_FORMAT}. "
                "Delete it: the tables are made anew from the vocabulary."
            )
        return cls(**arrays)
