"""Small tools for flat arrays with row splits.

All rows of a batch lie one after the other in one flat tensor.  `tf.repeat` of rows and
`RaggedTensor.value_rowids` are avoided on purpose: they cost rows x longest row.
"""

import tensorflow as tf


def true_indices(mask):
    """int32 places of True."""
    return tf.cast(tf.where(mask)[:, 0], tf.int32)


def lengths_to_splits(counts):
    """Exclusive cumulative sum with the total at the end: row splits from row lengths."""
    return tf.concat([[0], tf.cumsum(counts)], 0)


def ranges(starts, counts):
    """concat(range(s, s + c) for s, c in zip(starts, counts)), for small counts."""
    shift = tf.repeat(starts - tf.cumsum(counts, exclusive=True), counts)
    return shift + tf.range(tf.size(shift))


def indices_to_mask(size, places):
    """Bool (size,), True at `places`."""
    return tf.math.unsorted_segment_max(tf.ones_like(places), places, size) > 0


def runs(mask):
    """The maximal runs of True.

    Returns, for every True: its place; whether it is the first of its run; the number of its run;
    how many are left in the run, itself included.
    """
    place = true_indices(mask)
    first = tf.concat([[True], tf.not_equal(place[1:], place[:-1] + 1)], 0)[: tf.size(place)]
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    ends = tf.concat([true_indices(first)[1:], [tf.size(place)]], 0)
    return place, first, run, tf.gather(ends, run) - tf.range(tf.size(place))


def visited(size, left, first):
    """Flags of the places met when every run is walked from its first place in steps of `size`.

    A step of 0 ends the walk.  Pointer doubling: the number of rounds is logarithmic in the number
    of steps.
    """
    end = tf.size(size)
    step = tf.where((size > 0) & (size < left), tf.range(end) + size, end)

    def body(step, seen, _):
        more = tf.gather(step, seen)
        more = tf.boolean_mask(more, more < end)
        return tf.gather(step, step), tf.concat([seen, more], 0), tf.size(more) > 0

    _, seen, _ = tf.while_loop(
        lambda step, seen, grown: grown,
        body,
        [tf.concat([step, [end]], 0), true_indices(first), True],
        shape_invariants=[tf.TensorShape([None]), tf.TensorShape([None]), tf.TensorShape([])],
    )
    return indices_to_mask(end, seen)
