"""Entities as characters, as tokens and as tags: labels on the way in, answers on the way out."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from roformer_tf.layers import tag_probabilities, viterbi_decode

MINUS_INFINITY = float("-inf")


# === Labels ===


def token_spans(entities, details, exact=True):
    """Returns entities in characters as spans of tokens of each chunk.

    Args:
        entities: int32 tensor `(batch, count, 3)`: start, end (excluded) and type.
        details: See `RoFormerTokenClassifierPreprocessor.pack_chunks`.
        exact: bool. Whether an entity must begin and end where tokens do. If not, it gets all
            tokens that it touches.

    Returns:
        int32 tensor `(chunks, count, 3)`: first and last token, and type. All are -1 for padding,
        for entities of other chunks, and for those that do not fit.
    """
    start, end, kind = tf.unstack(entities, 3, axis=-1)
    far = tf.int32.max
    starts = details["token_starts"].to_tensor(far)
    ends = details["token_ends"].to_tensor(far)
    # one more column, which no entity reaches
    starts, ends = (tf.pad(x, [[0, 0], [0, 1]], constant_values=far) for x in (starts, ends))
    first = tf.searchsorted(ends, start, side="right")  # the first token that ends after the start
    last = tf.searchsorted(starts, end, side="left") - 1  # the last that starts before the end
    fits = (start >= 0) & (last >= first)
    if exact:
        fits &= tf.gather(starts, first, batch_dims=1) >= start
        fits &= tf.gather(ends, tf.maximum(last, 0), batch_dims=1) <= end
    # of the whole text -> of each chunk
    text = details["text"]
    begin, size, shift = (details[name][:, tf.newaxis] for name in ("begin", "size", "shift"))
    first, last = (tf.gather(x, text) - begin for x in (first, last))
    fits = tf.gather(fits, text) & (first >= 0) & (last < size)
    spans = tf.stack([first + shift, last + shift, tf.gather(kind, text)], axis=-1)
    return tf.where(fits[..., tf.newaxis], spans, -1)


def tags_of_spans(spans, length):
    """Returns spans as tags: 0 outside, 2k + 1 at the first token of type k, 2k + 2 at the others.

    Args:
        spans: int tensor `(batch, count, 3)`: first and last token, and type; -1 for padding.
        length: int. Number of tokens.

    Returns:
        int32 tensor `(batch, length)`.
    """
    first, last, kind = (x[..., None] for x in ops.unstack(ops.cast(spans, "int32"), 3, axis=-1))
    position = ops.arange(length, dtype="int32")[None, None]
    inside = (position >= first) & (position <= last) & (first >= 0)
    tags = 2 * kind + 2 - ops.cast(position == first, "int32")
    return ops.max(ops.where(inside, tags, 0), axis=1)


def mask_tags(logits, padding_mask):
    """Makes the tag of padding certain: minus infinity for all tags but 0, outside."""
    outside = ops.where(ops.arange(logits.shape[-1]) == 0, 0.0, MINUS_INFINITY)
    return ops.where(ops.cast(padding_mask, "bool")[..., None], logits, outside)


# === Answers ===


def spans_of_scores(scores):
    """Returns the spans whose score is above 0.

    Args:
        scores: float32 tensor `(chunks, types, length, length)`.

    Returns:
        `(chunk, first, last, type, score)`, tensors `(spans,)`.
    """
    found = tf.where(scores > 0)
    chunk, kind, first, last = tf.unstack(tf.cast(found, tf.int32), 4, axis=1)
    return chunk, first, last, kind, tf.sigmoid(tf.gather_nd(scores, found))


def best_tags(outputs, starts):
    """Returns the most probable tags that make whole entities.

    Args:
        outputs: Tensor `(chunks, length, tags)` of logits, or `(chunks, length, tags, tags)` of
            `ConditionalRandomField`.
        starts: int tensor `(chunks, length)`, -1 for tokens that belong to no entity.

    Returns:
        int32 tensor `(chunks, length)` of tags, and float32 tensor of their probabilities.
    """
    outputs = ops.cast(ops.convert_to_tensor(outputs), "float32")
    size = outputs.shape[-1]
    if len(outputs.shape) == 3:
        probabilities = ops.softmax(outputs, axis=-1)
        scores = ops.log_softmax(outputs, axis=-1)[:, :, None]
    else:
        probabilities, scores = tag_probabilities(outputs), outputs
    tag = ops.arange(size, dtype="int32")
    is_later = (tag > 0) & (tag % 2 == 0)
    # a later token of an entity follows its first token, or another later one
    follows = ops.equal((tag[:, None] + 1) // 2, (tag[None] + 1) // 2)
    allowed = ops.logical_or(ops.logical_not(is_later)[None], follows)
    starts = starts if ops.is_tensor(starts) else ops.convert_to_tensor(np.asarray(starts))
    outside = ops.logical_or(starts[:, :, None] >= 0, tag == 0)
    scores = ops.where(allowed, scores, MINUS_INFINITY)
    tags = viterbi_decode(ops.where(outside[:, :, None], scores, MINUS_INFINITY))
    chosen = ops.take_along_axis(probabilities, tags[..., None], axis=-1)[..., 0]
    return tags, chosen


def spans_of_tags(tags, probabilities):
    """Returns the spans of tags that make whole entities, with the mean probability of their tags.

    Args:
        tags, probabilities: See `best_tags`.

    Returns:
        `(chunk, first, last, type, score)`, tensors `(spans,)`.
    """
    after = tf.pad(tags[:, 1:], [[0, 0], [0, 1]])
    is_first = tags % 2 == 1
    is_last = (tags > 0) & ((after == 0) | (after % 2 == 1))
    begins = tf.where(is_first)
    chunk, first = tf.unstack(tf.cast(begins, tf.int32), 2, axis=1)
    last = tf.cast(tf.where(is_last)[:, 1], tf.int32)  # in the same order
    sums = tf.pad(tf.cumsum(probabilities, axis=1), [[0, 0], [1, 0]])
    total = tf.gather_nd(sums, tf.stack([chunk, last + 1], 1)) - tf.gather_nd(sums, begins)
    score = total / tf.cast(last - first + 1, tf.float32)
    return chunk, first, last, (tf.gather_nd(tags, begins) - 1) // 2, score


def entities_of_spans(spans, details, num_texts):
    """Returns the entities of each text from the spans of its chunks, in the order of the text.

    Args:
        spans: `(chunk, first, last, type, score)`, tensors `(spans,)`.
        details: See `RoFormerTokenClassifierPreprocessor.pack_chunks`.
        num_texts: int.

    Returns:
        Dictionary of RaggedTensors `(texts, entities)`: int32 `start`, `end` (excluded) and
        `type`, and float32 `score`.
    """
    chunk, first, last, kind, score = spans
    start = tf.gather_nd(details["starts"], tf.stack([chunk, first], 1))
    end = tf.gather_nd(details["ends"], tf.stack([chunk, last], 1))
    # what chunks share is answered by the one that sees more around it
    token = first - tf.gather(details["shift"], chunk)
    is_own = token >= tf.gather(details["own_begin"], chunk)
    is_own &= token < tf.gather(details["own_end"], chunk)
    kept = tf.where(is_own & (start >= 0) & (end >= 0))[:, 0]
    text, start, end, kind, score = (
        tf.gather(x, kept) for x in (tf.gather(details["text"], chunk), start, end, kind, score)
    )
    # sorted by the last key first, as each sort keeps the order of equals
    order = tf.range(tf.size(text))
    for key in (kind, end, start, text):
        order = tf.gather(order, tf.argsort(tf.gather(key, order), stable=True))
    counts = tf.math.bincount(text, minlength=num_texts, maxlength=num_texts)
    return {
        name: tf.RaggedTensor.from_row_lengths(tf.gather(x, order), counts)
        for name, x in (("start", start), ("end", end), ("type", kind), ("score", score))
    }


def to_tensorflow(tree):
    """Converts tensors of another Keras backend."""
    return keras.tree.map_structure(
        lambda x: x if tf.is_tensor(x) else tf.convert_to_tensor(ops.convert_to_numpy(x)), tree
    )
