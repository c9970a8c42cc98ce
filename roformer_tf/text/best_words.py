"""The most probable words of all runs of a batch: the dynamic programme of `jieba.cut`."""

import math

import tensorflow as tf

from roformer_tf.text.ragged_ops import flags, splits_of, where


def best_sizes(first, run, left, who, size, score, unknown_score):
    """Length of jieba's best word at every place of the runs.

    jieba goes from the end of each run to its start and takes at each place the maximum of (score
    of the word + score of the rest, end of the word).  The same is done here in float64 and in
    jieba's own order of additions, so that even ties come out the same: the longer word wins.
    Step t of the loop treats the t-th last place of all runs that are longer than t; with the runs
    sorted by length these are the first ones.

    Args:
        first, run, left: of every place, see `ragged_ops.runs`.
        who, size, score: of every word found: place where it begins, length, float64 score.
        unknown_score: score of a character that is no word.

    Returns:
        int32, of every place.

    Source: `jieba.Tokenizer.calc` of jieba 0.42.1.
    """
    n_places = tf.size(run)
    alone = where(~flags(n_places, who))  # no word of the dictionary begins here
    who = tf.concat([who, alone], 0)
    size = tf.concat([size, tf.ones_like(alone)], 0)
    unknown = tf.fill([tf.size(alone)], tf.constant(unknown_score, tf.float64))
    score = tf.concat([score, unknown], 0)
    widest = tf.maximum(tf.reduce_max(size), 1)

    lengths = tf.boolean_mask(left, first)
    n_runs = tf.size(lengths)
    by_length = tf.argsort(-lengths, stable=True)
    rank = tf.scatter_nd(by_length[:, None], tf.range(n_runs), [n_runs])
    splits = splits_of(tf.math.bincount(left - 1))
    order = tf.gather(splits, left - 1) + tf.gather(rank, run)

    # (place, widest): column widest - s belongs to words of s characters; missing ones score lowest
    cell = tf.gather(order, who) * widest + widest - size
    scores = tf.math.unsorted_segment_max(score, cell, n_places * widest)
    scores = tf.reshape(scores, [n_places, widest])
    sizes = tf.range(widest, 0, -1)[None]

    def body(t, route, best):
        begin, end = splits[t], splits[t + 1]
        route = route[: end - begin]
        total = scores[begin:end] + route
        top = tf.reduce_max(total, 1, keepdims=True)
        longest = tf.reduce_max(tf.where(tf.equal(total, top), sizes, 0), 1)
        return t + 1, tf.concat([route[:, 1:], top], 1), best.write(t, longest)

    steps = tf.size(splits) - 1
    none = tf.fill([n_runs, widest - 1], tf.constant(-math.inf, tf.float64))
    _, _, best = tf.while_loop(
        lambda t, *_: t < steps,
        body,
        [
            0,
            tf.concat([none, tf.zeros([n_runs, 1], tf.float64)], 1),
            tf.TensorArray(tf.int32, steps, infer_shape=False, element_shape=[None]),
        ],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None]), None],
    )
    best = tf.cond(steps > 0, best.concat, lambda: tf.zeros([0], tf.int32))
    return tf.gather(best, order)
