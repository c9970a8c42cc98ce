"""Splits long texts into segments that end where sentences do."""

import functools

import numpy as np
import tensorflow as tf

from roformer_tf.checks import check_positive_integer
from roformer_tf.text.ragged_ops import indices_to_mask, ragged_rows, true_indices, visited
from roformer_tf.text.strings import to_string_tensor


def text_segmentate(texts, max_characters, separators="\n。", cut_long=False):
    r"""Splits texts at separators into segments of about `max_characters`, in TensorFlow ops only.

    A text longer than `max_characters` is split after each occurrence of the first separator, and
    neighbouring parts are joined again as long as they fit. A segment that is still too long is
    split in the same way at the next separator, and so on. White space around segments is dropped.
    All texts are split at once, in time linear in their length.

    The segments equal the original's, without the empty ones that it returns for blank texts and
    paragraphs. So a blank text has no segments.

    Args:
        texts: string tensor `(batch,)`, or a list of strings. An invalid byte counts as one
            U+FFFD, as in the tokenizer.
        max_characters: int. At least 1.
        separators: str. Separator characters, in the order in which they are tried. May be empty.
        cut_long: bool. Whether to cut segments without a separator after every
            `max_characters` characters. By default they stay whole, as in the original.

    Returns:
        RaggedTensor of UTF-8 strings `(batch, segments)`.

    Raises:
        ValueError: If `max_characters` is not a positive integer, or `separators` not a string.

    Example:

    >>> from roformer_tf.text import text_segmentate
    >>> text = "春眠不觉晓。处处闻啼鸟。夜来风雨声。\n花落知多少，很长"
    >>> [segment.decode() for segment in text_segmentate([text], 12).to_list()[0]]
    ['春眠不觉晓。处处闻啼鸟。', '夜来风雨声。', '花落知多少，很长']
    >>> text_segmentate(["abcdefg", " "], 3, cut_long=True).to_list()
    [[b'abc', b'def', b'g'], []]

    Source: `text_segmentate` of bert4keras 0.11.5.
    """
    check_positive_integer("max_characters", max_characters)
    if not isinstance(separators, str):
        raise ValueError(f"`separators` must be a string. Received: {separators!r}")
    with tf.device("CPU"):
        texts = to_string_tensor(texts)
        codes = tuple(map(ord, dict.fromkeys(separators)))
        return _segmentate(texts, tf.constant(int(max_characters)), codes, bool(cut_long))


@tf.function(autograph=False, reduce_retracing=True)
def _segmentate(texts, limit, separators, cut_long):
    """Runs `text_segmentate` in a graph. `separators` are code points, `limit` is a tensor."""
    with tf.device("CPU"):
        rows = tf.strings.unicode_decode(texts, "UTF-8")
        codes, splits = rows.flat_values, tf.cast(rows.row_splits, tf.int32)
        strip = _stripper(codes)
        starts, ends = strip(splits[:-1], splits[1:])
        for separator in separators:
            starts, ends = strip(*_split(codes, starts, ends, separator, limit))
        if cut_long:
            starts, ends = strip(*_cut(starts, ends, limit))
        characters = tf.gather(codes, tf.ragged.range(starts, ends).flat_values)
        segments = ragged_rows(characters, ends - starts)
        return tf.RaggedTensor.from_row_splits(
            tf.strings.unicode_encode(segments, "UTF-8"),
            tf.searchsorted(starts, splits, out_type=tf.int64),
            validate=False,
        )


def _split(codes, starts, ends, separator, limit):
    """Splits each segment that is longer than `limit`. A new segment ends with a separator.

    The original collects parts from left to right. A part opens a new segment if it is not empty
    and would make the current one, without its last separator, `limit` characters or longer. So the
    start of a segment determines the start of the next one. This is computed for all positions;
    pointer doubling then finds those that are reached from the start of each text.
    """
    size = tf.size(codes)
    position = true_indices(tf.equal(codes, separator))
    whole = ends - starts <= limit
    # A segment can begin with the first part of a text, and with each non-empty part
    owner = tf.searchsorted(starts, position, side="right")
    opens = position + 1 < tf.gather(tf.concat([[0], tf.where(whole, 0, ends)], 0), owner)
    opens &= tf.not_equal(tf.gather(codes, tf.minimum(position + 1, size - 1)), separator)
    opening = tf.boolean_mask(position, opens) + 1
    # merge both in order
    at = tf.range(tf.size(starts)) + tf.searchsorted(opening, starts)
    at = tf.concat([at, tf.range(tf.size(opening)) + tf.boolean_mask(owner, opens)], 0)
    part = tf.scatter_nd(at[:, None], tf.concat([starts, opening], 0), tf.shape(at))
    first = indices_to_mask(tf.size(at), at[: tf.size(starts)])
    owner = tf.cumsum(tf.cast(first, tf.int32)) - 1
    end = tf.gather(tf.concat([position, [size]], 0), tf.searchsorted(position, part))
    own_end = tf.gather(ends, owner)
    end = tf.where(tf.gather(whole, owner), own_end, tf.minimum(end, own_end))

    number = tf.range(tf.size(part))
    following = tf.maximum(tf.searchsorted(end, part + limit), number + 1)
    last = tf.concat([true_indices(first)[1:], [tf.size(part)]], 0)
    begins = visited(following - number, tf.gather(last, owner) - number, first)
    starts = tf.boolean_mask(part, begins)
    first, own_end = tf.boolean_mask(first, begins), tf.boolean_mask(own_end, begins)
    is_last = tf.concat([first[1:], [True]], 0)[: tf.size(first)]
    following = tf.concat([starts[1:], [size]], 0)[: tf.size(starts)]
    return starts, tf.where(is_last, own_end, following)


def _cut(starts, ends, limit):
    """Cuts segments after every `limit` characters."""
    cut = tf.ragged.range(starts, ends, limit).flat_values
    return cut, tf.minimum(
        cut + limit, tf.gather(ends, tf.searchsorted(starts, cut, side="right") - 1)
    )


def _stripper(codes):
    """Returns a function that strips white space from segments and drops blank ones."""
    space = tf.constant(_white_space())
    position = true_indices(~tf.gather(space, tf.minimum(codes, tf.size(space) - 1)))

    def strip(starts, ends):
        low, high = tf.searchsorted(position, starts), tf.searchsorted(position, ends)
        filled = high > low
        low, high = tf.boolean_mask(low, filled), tf.boolean_mask(high, filled)
        return tf.gather(position, low), tf.gather(position, high - 1) + 1

    return strip


@functools.cache
def _white_space():
    """Returns bool: whether `str.strip` drops a code point; the last entry is for all higher."""
    spaces = [code for code in range(0x110000) if chr(code).isspace()]
    table = np.zeros(max(spaces) + 2, bool)
    table[spaces] = True
    return table
