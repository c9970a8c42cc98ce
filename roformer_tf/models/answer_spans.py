"""From the outputs of models to the answers to questions."""

import tensorflow as tf

from roformer_tf.models.entity_spans import to_tensorflow


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

    Args:
        outputs: Tensor `(batch, choices)` of logits.
        choices: string tensor `(batch, choices)`, padded with "".

    Returns:
        Dictionary of tensors `(batch, choices)`: int32 `index`, string `choice`, and float32
        `probability`, -1 for padding.
    """
    probabilities = tf.nn.softmax(to_tensorflow(outputs))[:, : tf.shape(choices)[1]]
    probabilities = tf.where(choices != "", probabilities, -1.0)
    index = tf.argsort(-probabilities, axis=1, stable=True)
    with tf.device("CPU"):
        choice = tf.gather(choices, index, batch_dims=1)
    probabilities = tf.gather(probabilities, index, batch_dims=1)
    return {"index": index, "choice": choice, "probability": probabilities}


def answer_lists(tensors, names):
    """Returns the answers to each question as a list of tuples, without padding.

    Args:
        tensors: Dictionary of tensors `(batch, answers)`, as the functions above return it.
        names: Keys of the values of a tuple. That of the last one is -1 for padding.
    """

    def values(name):
        rows = tensors[name].numpy().tolist()
        if tensors[name].dtype != tf.string:
            return rows
        return [[text.decode("utf-8", "replace") for text in row] for row in rows]

    columns = map(values, names)
    return [[answer for answer in zip(*rows) if answer[-1] >= 0] for rows in zip(*columns)]
