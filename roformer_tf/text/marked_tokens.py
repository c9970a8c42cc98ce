"""Finds some tokens in a string as they are written, before the rest is tokenized."""

import itertools
import os
import re

import tensorflow as tf

from roformer_tf.portable import NO_INLINE
from roformer_tf.text.graph_tokenizer import TEXTS
from roformer_tf.text.ragged_ops import ragged_rows

# Put around each such token in a string. No string has it already, as it is not valid UTF-8.
_MARK = b"\xff\x00\xff"


def checked_new_tokens(tokens):
    """Returns tokens as a list without repetitions.

    Raises:
        ValueError: If they are not a list of strings, or one is empty or has white space.
    """
    is_list = isinstance(tokens, list | tuple)
    if not is_list or not all(isinstance(x, str) and x.split() == [x] for x in tokens):
        raise ValueError(
            "`tokens` must be a list of strings without white space, such as ['<city>']. "
            f"Received: {tokens!r}"
        )
    return list(dict.fromkeys(tokens))


class MarkedTokens(tf.Module):
    """A `GraphTokenizer` that first looks for some tokens, such as "[MASK]", in the strings.

    It has the methods of `GraphTokenizer`. If several of these tokens begin at the same character,
    it takes the longest. Some 5,000 tokens that begin with hundreds of different characters, such as
    Chinese names, are too many: RE2 prints "DFA out of memory", and takes milliseconds for a line.

    Args:
        graph: `GraphTokenizer`. Tokenizes the text between these tokens.
        ids: dict from tokens to their ids.

    Example:

    >>> from roformer_tf.text import RoFormerTokenizer
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
    >>> graph = RoFormerTokenizer(vocabulary, word_level=False).graph
    >>> marked = MarkedTokens(graph, {"[MASK]": 4, "天气": 7})
    >>> marked(tf.constant(["天[MASK]气", "天气", ""])).to_list()
    [[5, 4, 6], [7], []]
    """

    def __init__(self, graph, ids):
        super().__init__()
        self._graph = graph
        self._pattern = _pattern_of(list(ids))
        tokens = tf.constant([token.encode() for token in ids])
        with tf.device("CPU"), tf.init_scope():
            values = tf.constant(list(ids.values()), tf.int32)
            self._ids = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tokens, values), -1
            )

    @tf.function(input_signature=TEXTS, autograph=False, experimental_attributes=NO_INLINE)
    def __call__(self, texts):
        with tf.device("CPU"):
            parts, ids, others = self._split(texts)
            return _merge(parts, self._graph(others), ids, ids)

    @tf.function(input_signature=TEXTS, autograph=False, experimental_attributes=NO_INLINE)
    def tokenize_with_offsets(self, texts):
        """Returns ids, starts and ends; see `GraphTokenizer.tokenize_with_offsets`."""
        with tf.device("CPU"):
            parts, marked, others = self._split(texts)
            ids, starts, ends = self._graph.tokenize_with_offsets(others)
            first, last = _spans(parts)
            return (
                _merge(parts, ids, marked, marked),
                _merge(parts, starts + first[:, tf.newaxis], first, marked),
                _merge(parts, ends + first[:, tf.newaxis], last, marked),
            )

    def tokenize_with_word_starts(self, texts):
        """Returns ids, word starts and starts; see `GraphTokenizer.tokenize_with_word_starts`."""
        with tf.device("CPU"):
            parts, marked, others = self._split(texts)
            ids, word_starts, starts = self._graph.tokenize_with_word_starts(others)
            first, _ = _spans(parts)
            return (
                _merge(parts, ids, marked, marked),
                _merge(parts, word_starts, marked >= 0, marked),
                _merge(parts, starts + first[:, tf.newaxis], first, marked),
            )

    def _split(self, texts):
        """Returns the parts of each text, their ids (-1 for text), and the parts that are text."""
        texts = tf.strings.regex_replace(texts, self._pattern, _MARK + rb"\0" + _MARK)
        parts = tf.strings.split(texts, sep=_MARK)
        ids = self._ids.lookup(parts.values)
        return parts, ids, tf.where(ids < 0, parts.values, "")


def _pattern_of(tokens):
    """Returns a regular expression for the longest token. It has common beginnings once.

    RE2 has little memory for a list of alternatives, and is slow when that is full.
    """
    prefix = os.path.commonprefix(tokens)
    rests = sorted(token[len(prefix) :] for token in tokens)
    groups = itertools.groupby(filter(None, rests), key=lambda rest: rest[0])
    choices = "|".join(_pattern_of(list(group)) for _, group in groups)
    if choices:
        choices = f"(?:{choices})" + ("?" if "" in rests else "")
    return re.escape(prefix) + choices


def _spans(parts):
    """Returns the first character of each part in its text, and the one after its last."""
    lengths = tf.cast(tf.strings.unicode_decode(parts.values, "UTF-8").row_lengths(), tf.int32)
    ends = tf.cumsum(lengths)
    before = tf.gather(tf.concat([[0], ends], 0), parts.row_starts())
    ends -= tf.gather(before, parts.value_rowids())
    return ends - lengths, ends


def _merge(parts, of_text, of_token, ids):
    """Joins the tokens of each text's parts. A part with an id is a token itself."""
    is_token = ids >= 0
    tokens = ragged_rows(tf.boolean_mask(of_token, is_token), tf.cast(is_token, tf.int32))
    of_text = of_text.with_row_splits_dtype(tf.int64)
    return parts.with_values(tf.concat([of_text, tokens], axis=1)).merge_dims(1, 2)
