"""Ops for ragged batches as flat tensors with row splits.

The rows of a batch follow one another in one flat tensor. `tf.repeat` of rows and
`RaggedTensor.value_rowids` are avoided because they cost rows x longest row.
"""

import tensorflow as tf


def true_indices(mask):
    """Returns the int32 indices of True."""
    return tf.cast(tf.where(mask)[:, 0], tf.int32)


def lengths_to_splits(counts):
    """Converts row lengths to row splits: the exclusive cumulative sum, then the total."""
    return tf.concat([[0], tf.cumsum(counts)], 0)


def ranges(starts, counts):
    """Concatenates `range(s, s + c)` for each start `s` and its (small) count `c`."""
    shift = tf.repeat(starts - tf.cumsum(counts, exclusive=True), counts)
    return shift + tf.range(tf.size(shift))


def indices_to_mask(size, indices):
    """Returns a bool tensor `(size,)` that is True at `indices`."""
    return tf.math.unsorted_segment_max(tf.ones_like(indices), indices, size) > 0


def runs(mask):
    """Finds the maximal runs of True.

    Returns:
        For each True: its position; whether it is the first in its run; the number of its run;
        and how many positions are left in the run, including itself.
    """
    position = true_indices(mask)
    first = tf.concat([[True], tf.not_equal(position[1:], position[:-1] + 1)], 0)
    first = first[: tf.size(position)]
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    ends = tf.concat([true_indices(first)[1:], [tf.size(position)]], 0)
    return position, first, run, tf.gather(ends, run) - tf.range(tf.size(position))


def visited(size, left, first):
    """Marks the positions visited when each run is walked from its start in steps of `size`.

    A step of 0 ends the walk. Pointer doubling takes logarithmically many rounds.
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
