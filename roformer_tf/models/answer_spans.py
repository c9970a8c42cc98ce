"""Spans as characters, as tokens and as tags: labels on the way in, answers on the way out."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from roformer_tf.layers import tag_probabilities, viterbi_decode

MINUS_INFINITY = float("-inf")


# === Entities as labels ===


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

    The spans are an int tensor `(batch, count, 3)`: first and last token, and type; -1 for padding.
    The tags are int32 `(batch, length)`.
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


# === Entities as answers ===


def spans_of_scores(scores):
    """Returns the spans whose score `(chunks, types, length, length)` is above 0.

    They are `(chunk, first, last, type, score)`, tensors `(spans,)`.
    """
    found = tf.where(scores > 0)
    chunk, kind, first, last = tf.unstack(tf.cast(found, tf.int32), 4, axis=1)
    return chunk, first, last, kind, tf.sigmoid(tf.gather_nd(scores, found))


def best_tags(outputs, starts):
    """Returns the most probable tags that make whole entities, and their probabilities.

    Args:
        outputs: Tensor `(chunks, length, tags)` of logits, or `(chunks, length, tags, tags)` of
            `ConditionalRandomField`.
        starts: int tensor `(chunks, length)`, -1 for tokens that belong to no entity.
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

    The arguments are what `best_tags` returns; the spans are those of `spans_of_scores`.
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

    They are a dictionary of RaggedTensors `(texts, entities)`: int32 `start`, `end` (excluded) and
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


# === Answers to questions ===


def answers_of_scores(
    outputs, details, num_examples, n_best=1, no_answer=False, max_answer_length=64
):
    """Returns the most probable answers of each question over all chunks of its context.

    Args:
        outputs: Tensor `(chunks, length, length)` of scores of spans, or `(chunks, length, 2)` of
            starts and ends.
        details: See `RoFormerQuestionAnsweringPreprocessor.pack_chunks`, and `context`, strings
            `(batch,)`.
        num_examples: int. Size of the batch.
        n_best, no_answer, max_answer_length: See `RoFormerQuestionAnswering.predict`.

    Returns:
        Dictionary of tensors `(batch, n_best)`: int32 `start` and `end`, string `text`, float32
        `score`, where padding is 0, 0, "" and -1; and `no_answer` `(batch,)`, the probability that
        there is none: the least one of all chunks.
    """
    outputs = to_tensorflow(outputs)
    starts, ends = details["starts"], details["ends"]
    length = tf.shape(starts)[1]
    if outputs.shape[-1] == 2 and outputs.shape[1] != 2:
        log = tf.nn.log_softmax(outputs, axis=1)
        probabilities = tf.exp(log[:, :, tf.newaxis, 0] + log[:, tf.newaxis, :, 1])
    else:
        flat = tf.reshape(outputs, [-1, length * length])
        probabilities = tf.reshape(tf.nn.softmax(flat), tf.shape(outputs))
    of_none = probabilities[:, 0, 0]

    position = tf.range(length)
    distance = position[tf.newaxis] - position[:, tf.newaxis]
    allowed = (distance >= 0) & (distance < max_answer_length)
    is_context = starts >= 0
    allowed &= is_context[:, :, tf.newaxis] & is_context[:, tf.newaxis, :]
    flat = tf.reshape(tf.where(allowed, probabilities, -1.0), [-1, length * length])
    scores, index = tf.math.top_k(flat, tf.minimum(n_best, length * length))  # (chunks, k)
    start = tf.gather(starts, index // length, batch_dims=1)
    end = tf.gather(ends, index % length, batch_dims=1)

    # the candidates of all chunks of a question, side by side
    text = details["text"]
    counts = tf.math.bincount(text, minlength=num_examples, maxlength=num_examples)

    def by_question(x, default):
        rows = tf.RaggedTensor.from_row_lengths(x, counts)
        dense = rows.to_tensor(default)
        return tf.reshape(dense, [num_examples, tf.reduce_prod(tf.shape(dense)[1:])])

    scores, start, end = by_question(scores, -1.0), by_question(start, 0), by_question(end, 0)
    least = tf.math.unsorted_segment_min(of_none, text, num_examples)
    if no_answer:
        scores = tf.concat([scores, least[:, tf.newaxis]], axis=1)
        start, end = (tf.pad(x, [[0, 0], [0, 1]]) for x in (start, end))
    # neighboring chunks share tokens, so an answer may be found twice
    order = tf.argsort(-scores, axis=1, stable=True)
    scores, start, end = (tf.gather(x, order, batch_dims=1) for x in (scores, start, end))
    same = tf.equal(start[:, :, None], start[:, None]) & tf.equal(end[:, :, None], end[:, None])
    before = tf.linalg.band_part(tf.ones(tf.shape(same)[1:]), -1, 0) - tf.eye(tf.shape(same)[1]) > 0
    is_first = ~tf.reduce_any(same & before, axis=2)
    scores = tf.where(is_first, scores, -1.0)
    room = tf.maximum(n_best - tf.shape(scores)[1], 0)
    scores = tf.pad(scores, [[0, 0], [0, room]], constant_values=-1.0)
    start, end = (tf.pad(x, [[0, 0], [0, room]]) for x in (start, end))
    scores, order = tf.math.top_k(scores, n_best)
    found = scores >= 0
    start, end = (tf.where(found, tf.gather(x, order, batch_dims=1), 0) for x in (start, end))
    with tf.device("CPU"):
        context = tf.repeat(details["context"], n_best)
        flat_start = tf.reshape(start, [-1])
        size = tf.reshape(end, [-1]) - flat_start
        answer = tf.strings.substr(
            context + " ", tf.where(size > 0, flat_start, 0), size, unit="UTF8_CHAR"
        )
        answer = tf.reshape(answer, [num_examples, n_best])
    return {"start": start, "end": end, "text": answer, "score": scores, "no_answer": least}


def answers_of_logits(outputs, choices):
    """Returns the choices of each question, the most probable first.

    Both arguments are tensors `(batch, choices)`, and so are the results: int32 `index`, string
    `choice`, which is "" for padding, and float32 `probability`, which is -1 for it.
    """
    probabilities = tf.nn.softmax(to_tensorflow(outputs))[:, : tf.shape(choices)[1]]
    probabilities = tf.where(choices != "", probabilities, -1.0)
    index = tf.argsort(-probabilities, axis=1, stable=True)
    with tf.device("CPU"):
        choice = tf.gather(choices, index, batch_dims=1)
    probabilities = tf.gather(probabilities, index, batch_dims=1)
    return {"index": index, "choice": choice, "probability": probabilities}


def answer_lists(tensors, names):
    """Returns the answers to each question as a list of tuples of `names`, without padding.

    The last of `names`, keys of the dictionaries above, is -1 for padding.
    """

    def values(name):
        rows = tensors[name].numpy().tolist()
        if tensors[name].dtype != tf.string:
            return rows
        return [[text.decode("utf-8", "replace") for text in row] for row in rows]

    columns = map(values, names)
    return [[answer for answer in zip(*rows) if answer[-1] >= 0] for rows in zip(*columns)]


def to_tensorflow(tree):
    """Converts tensors of another Keras backend."""
    return keras.tree.map_structure(
        lambda x: x if tf.is_tensor(x) else tf.convert_to_tensor(ops.convert_to_numpy(x)), tree
    )
