"""Answers from spans and tags of tokens: entities, spans of a context, choices."""

import keras
import tensorflow as tf
from keras import ops

from roformer_tf.text.ragged_ops import ragged_rows

# === Entities ===


def spans_of_scores(scores):
    """Returns the spans whose score `(chunks, types, length, length)` is above 0.

    They are `(chunk, first, last, type, score)`, tensors `(spans,)`.
    """
    found = tf.where(scores > 0)
    chunk, kind, first, last = tf.unstack(tf.cast(found, tf.int32), 4, axis=1)
    return chunk, first, last, kind, tf.sigmoid(tf.gather_nd(scores, found))


def spans_of_tags(tags, probabilities):
    """Returns the spans of tags that make whole entities, with the mean probability of their tags.

    The arguments are what `best_tags` returns; the spans are those of `spans_of_scores`.
    """
    after = tf.pad(tags[:, 1:], [[0, 0], [0, 1]])
    is_first = tags % 2 == 1
    is_last = (tags > 0) & ((after == 0) | (after % 2 == 1))
    begins = tf.where(is_first)
    chunk, first = tf.unstack(tf.cast(begins, tf.int32), 2, axis=1)
    last = tf.cast(tf.where(is_last)[:, 1], tf.int32)  # in the order of `first`
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
    # where two chunks overlap, an entity is that of the chunk that sees more around it
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
    rows = ragged_rows(order, counts)
    return {
        name: rows.with_values(tf.gather(x, order))
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
    rows = ragged_rows(text, counts)

    def by_question(x, default):
        dense = rows.with_values(x).to_tensor(default)
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
