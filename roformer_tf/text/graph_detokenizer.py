"""bert4keras' `Tokenizer.decode` in TensorFlow ops."""

import functools
import re
import sys
import unicodedata

import tensorflow as tf

from roformer_tf.checkpoint.vocabulary import is_cjk, is_punctuation
from roformer_tf.text.ragged_ops import lengths_to_splits

# How a token is written: not at all, such as "[SEP]"; after the text before it; or after a space
SPECIAL, GLUED, WORD = range(3)
# How the text ends after a token
OTHER, CJK, UNCHANGED = range(3)

# `Tokenizer._cjk_punctuation` of bert4keras
CJK_PUNCTUATION = (
    "\uff02\uff03\uff04\uff05\uff06\uff07\uff08\uff09\uff0a\uff0b\uff0c\uff0d\uff0f\uff1a\uff1b"
    "\uff1c\uff1d\uff1e\uff20\uff3b\uff3c\uff3d\uff3e\uff3f\uff40\uff5b\uff5c\uff5d\uff5e\uff5f"
    "\uff60\uff62\uff63\uff64\u3000\u3001\u3003\u3008\u3009\u300a\u300b\u300c\u300d\u300e\u300f"
    "\u3010\u3011\u3014\u3015\u3016\u3017\u3018\u3019\u301a\u301b\u301c\u301d\u301e\u301f\u3030"
    "\u303e\u303f\u2013\u2014\u2018\u2019\u201b\u201c\u201d\u201e\u201f\u2026\u2027\ufe4f\ufe51"
    "\ufe54\u00b7\uff01\uff1f\uff61\u3002"
)


def replacements(digit=r"\d", space=r"\s"):
    """Returns the (pattern, replacement) pairs that put spaces right, to apply in this order."""
    return (
        (" +", " "),
        ("' (re|m|s|t|ve|d|ll) ", r"'\1 "),
        (f"([{re.escape(CJK_PUNCTUATION + '+-/={(<[')}]) ", r"\1"),
        (rf"({digit}\.) ({digit})", r"\1\2"),
        (f"^{space}+|{space}+$", ""),
    )


@functools.cache
def _replacements_of_re2():
    """Spells out Python's digits and white space: RE2 follows another Unicode version."""
    characters = [chr(c) for c in range(sys.maxunicode + 1)]
    digits = "".join(c for c in characters if unicodedata.category(c) == "Nd")
    spaces = "".join(c for c in characters if c.isspace())
    return replacements(f"[{re.escape(digits)}]", f"[{re.escape(spaces)}]")


class GraphDetokenizer(tf.Module):
    """Maps token ids to readable text with core TensorFlow ops only.

    Args:
        vocabulary: `Vocabulary`.
        added_tokens: Tokens of it that are written as they are. All others in brackets, such as
            "[SEP]", are special and not written.

    Call arguments:
        ids: RaggedTensor int32 (batch, tokens).

    Returns:
        string tensor (batch,).

    Raises:
        tf.errors.InvalidArgumentError: If an id is not in the vocabulary.

    Example:

    >>> from roformer_tf.checkpoint.vocabulary import Vocabulary
    >>> detokenizer = GraphDetokenizer(Vocabulary(["[CLS]", "追一", "ro", "##former", "。"]))
    >>> detokenizer(tf.ragged.constant([[0, 2, 3, 1, 4]]))[0].numpy().decode()
    'roformer 追一。'

    Source: `Tokenizer.decode` of bert4keras 0.11.5. Where that raises IndexError, for a word that
    follows only the token `##`, this strips the space before the word.
    """

    def __init__(self, vocabulary, added_tokens=(), name=None):
        super().__init__(name)
        tokens = [vocabulary.token(i) for i in range(vocabulary.size)]
        described = [describe(token, token in added_tokens) for token in tokens]
        texts, kinds, lasts = zip(*described, strict=True)
        with tf.device("CPU"), tf.init_scope():
            self._texts = tf.constant([text.encode() for text in texts])
            self._kinds = tf.constant(kinds)
            self._lasts = tf.constant(lasts)
        self._size = vocabulary.size

    @tf.function(
        input_signature=[tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)],
        autograph=False,
    )
    def __call__(self, ids):
        with tf.device("CPU"):
            known = tf.debugging.Assert(
                tf.reduce_all((ids.values >= 0) & (ids.values < self._size)),
                [f"token ids must be in [0, {self._size}), the vocabulary. Received:", ids.values],
            )
            with tf.control_dependencies([known]):
                kinds = tf.gather(self._kinds, ids.values)
            keep = tf.not_equal(kinds, SPECIAL)
            splits = tf.gather(
                lengths_to_splits(tf.cast(keep, tf.int32)), tf.cast(ids.row_splits, tf.int32)
            )
            values, kinds = tf.boolean_mask(ids.values, keep), tf.boolean_mask(kinds, keep)

            # how the text ends before each token: as the last token before it that is not UNCHANGED
            lasts = tf.gather(self._lasts, values)
            is_defined = tf.not_equal(lasts, UNCHANGED)
            num_defined = lengths_to_splits(tf.cast(is_defined, tf.int32))
            num_defined_before_row = tf.gather(num_defined, splits[:-1])
            num_defined = num_defined[:-1]
            rows = tf.RaggedTensor.from_row_splits(
                num_defined, tf.cast(splits, tf.int64), validate=False
            )
            any_in_row = (rows - num_defined_before_row[:, tf.newaxis]).values > 0
            lasts = tf.concat([[OTHER], tf.boolean_mask(lasts, is_defined)], 0)
            after_cjk = any_in_row & tf.equal(tf.gather(lasts, num_defined), CJK)

            texts = tf.gather(self._texts, values)
            spaced = tf.equal(kinds, WORD) & ~after_cjk
            texts = tf.where(spaced, " " + texts, texts)
            texts = tf.strings.reduce_join(rows.with_values(texts), axis=-1)
            for pattern, replacement in _replacements_of_re2():
                texts = tf.strings.regex_replace(texts, pattern, replacement)
            return texts


def describe(token, is_added=False):
    """Returns a token's text, how it is written, and how the text ends after it."""
    if token is None or token[:1] == "[" and token[-1:] == "]" and not is_added:
        return "", SPECIAL, UNCHANGED
    if len(token) == 1 and is_punctuation(token) and not is_cjk(token):
        return token + " ", GLUED, OTHER
    kind = GLUED if token[:2] == "##" or len(token) == 1 and is_cjk(token) else WORD
    text = token[2:] if token[:2] == "##" else token
    # an empty WORD adds a space, except after a Chinese character
    return text, kind, (CJK if is_cjk(text[-1]) else OTHER) if text else UNCHANGED


def detokenize_pairs(detokenizer, end_token_id, separator, ids):
    """Calls a `GraphDetokenizer`, with a separator between texts that an end token separates."""
    with tf.device("CPU"):
        ids = ids.with_row_splits_dtype(tf.int64)
        ends = tf.where(tf.equal(ids.values, end_token_id))[:, 0] + 1
        splits = tf.unique(tf.sort(tf.concat([ids.row_splits, ends], 0))).y
        rows = tf.searchsorted(ids.row_splits, splits[:-1], side="right", out_type=tf.int64) - 1
        texts = detokenizer(tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False))
        found = tf.not_equal(texts, "")
        texts, rows = tf.boolean_mask(texts, found), tf.boolean_mask(rows, found)
        texts = tf.RaggedTensor.from_value_rowids(texts, rows, ids.nrows(), validate=False)
        return tf.strings.reduce_join(texts, axis=-1, separator=separator)
