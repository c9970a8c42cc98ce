"""Which tokens begin a word, by the tokenizer's own words or those of another one."""

import tensorflow as tf


@tf.function(autograph=False, reduce_retracing=True)
def tokenize_with_words(graph, segmenter, texts):
    """Token ids, and which of them begin a word.

    A word of the segmenter begins at the first token behind its start, unless that is a later piece
    of a run of letters: where jieba takes every character of another script for a word, the pieces
    of a run stay together.

    Args:
        graph: `GraphTokenizer`.
        segmenter: None, or a `GraphTokenizer` of word level, whose words count.
        texts: string tensor (batch,).

    Returns:
        Two RaggedTensors (batch, tokens): int32 ids, bool.
    """
    ids, begins, starts = graph.tokenize_with_words(texts)
    if segmenter is None:
        return ids, begins
    with tf.device("CPU"):
        _, theirs, places = segmenter.tokenize_with_words(texts)
        width = tf.reduce_max(tf.concat([starts.flat_values, places.flat_values, [0]], 0)) + 1
        words = tf.boolean_mask(_unique_places(places, width), theirs.flat_values)
        # the number of words that have begun: it grows from token to token where one begins
        begun = tf.searchsorted(words, _unique_places(starts, width), side="right")
        grows = tf.concat([[True], tf.not_equal(begun[1:], begun[:-1])], 0)[: tf.size(begun)]
        # no row begins within a word, whatever becomes of the segmenter's first token
        row_starts = tf.boolean_mask(starts.row_starts(), starts.row_lengths() > 0)
        grows = tf.tensor_scatter_nd_update(
            grows, row_starts[:, None], tf.fill([tf.size(row_starts)], True)
        )
        return ids, begins.with_flat_values(begins.flat_values & grows)


def _unique_places(places, width):
    """Places in rows -> int64 numbers that rise over all rows."""
    lengths = places.row_lengths()
    # the row of every token; not value_rowids, which costs rows x longest row
    begins = tf.math.unsorted_segment_sum(
        tf.ones_like(lengths), places.row_starts(), tf.size(places.flat_values) + 1
    )
    row = tf.cumsum(begins)[:-1]
    return row * tf.cast(width, tf.int64) + tf.cast(places.flat_values, tf.int64)
