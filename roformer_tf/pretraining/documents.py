"""Places and sizes of the documents of a row, from their numbers."""

import tensorflow as tf


def places_in_documents(document_ids):
    """0, 1, 2, … from the start of each document; 0 for padding.

    Args:
        document_ids: int32 tensor `(rows, width)`, the documents of a row one after the other; 0 for padding.

    Returns:
        int32 tensor `(rows, width)`.

    >>> places_in_documents(tf.constant([[1, 1, 1, 2, 2, 0, 0]])).numpy().tolist()
    [[0, 1, 2, 0, 1, 0, 0]]
    """
    place = tf.broadcast_to(tf.range(tf.shape(document_ids)[1]), tf.shape(document_ids))
    begins = document_ids != tf.pad(document_ids[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
    start = _running_maximum(tf.where(begins, place, 0))
    return tf.where(document_ids > 0, place - start, 0)


def document_lengths(document_ids):
    """For each token the number of tokens of its document; 0 for padding.

    >>> document_lengths(tf.constant([[1, 1, 1, 2, 2, 0, 0]])).numpy().tolist()
    [[3, 3, 3, 2, 2, 0, 0]]
    """
    before = places_in_documents(document_ids)
    after = tf.reverse(places_in_documents(tf.reverse(document_ids, [1])), [1])
    return tf.where(document_ids > 0, before + after + 1, 0)


def _running_maximum(x):
    """Cumulative maximum of numbers >= 0 along each row, in a logarithmic number of shifts."""
    width = tf.shape(x)[1]

    def body(shift, x):
        return 2 * shift, tf.maximum(x, tf.pad(x, [[0, 0], [shift, 0]])[:, :width])

    return tf.while_loop(
        lambda shift, x: shift < width,
        body,
        [1, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
    )[1]
