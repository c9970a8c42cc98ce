"""Ops for ragged batches as flat tensors with row splits; long texts as overlapping chunks.

The rows of a batch follow one another in one flat tensor. `tf.repeat` and
`RaggedTensor.value_rowids` are avoided because they cost rows x longest row, and because
`tf.repeat` is twice as many operations as `repeat_indices`: every graph with a tokenizer is
prepared when it first runs, which takes some 0.2 ms for each of them.
"""

import tensorflow as tf


def true_indices(mask):
    """Returns the int32 indices of True."""
    return tf.cast(tf.where(mask)[:, 0], tf.int32)


def lengths_to_splits(counts):
    """Converts row lengths to row splits: the exclusive cumulative sum, then the total."""
    return tf.concat([[0], tf.cumsum(counts)], 0)


def repeat_indices(lengths):
    """Repeats 0 `lengths[0]` times, 1 `lengths[1]` times, and so on: the rows of all values.

    >>> repeat_indices(tf.constant([2, 0, 1, 3])).numpy().tolist()
    [0, 0, 2, 3, 3, 3]
    """
    splits = lengths_to_splits(lengths)
    begins = tf.math.unsorted_segment_sum(tf.ones_like(lengths), splits[:-1], splits[-1] + 1)
    return tf.cumsum(begins)[:-1] - 1


def ranges(starts, counts):
    """Concatenates `range(s, s + c)` for each start `s` and its count `c`."""
    return tf.raw_ops.RaggedRange(starts=starts, limits=starts + counts, deltas=1).rt_dense_values


def ragged_rows(values, lengths):
    """Returns a RaggedTensor of rows of these lengths, whose sum is not checked."""
    splits = tf.cast(lengths_to_splits(lengths), tf.int64)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def indices_to_mask(size, indices):
    """Returns a bool tensor `(size,)` that is True at `indices`."""
    return tf.math.unsorted_segment_max(tf.ones_like(indices), indices, size) > 0


def runs(mask):
    """Finds the maximal runs of True.

    Returns for each True: its position; whether it is the first in its run; the number of its run;
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


def chunk_tokens(rows, room, stride):
    """Cuts texts into overlapping chunks.

    Args:
        rows: list of RaggedTensors `(batch, tokens)` with the same row lengths, such as token ids
            and their offsets.
        room: int, or int32 tensor `(batch,)`. Number of tokens of a chunk.
        stride: int, or int32 tensor `(batch,)`. Number of tokens that neighboring chunks share,
            less than the room.

    Returns:
        `(chunks, details)`: the list `rows` as RaggedTensors `(chunks, tokens)`, and a dictionary
        of int32 tensors `(chunks,)`: `text`, the row of each chunk; `begin`, the index of its first
        token; `size`, its number of tokens; and `own_begin` and `own_end`, between which tokens
        belong to this chunk alone: what chunks share is divided between them in the middle.

    Example:

    >>> (chunks,), details = chunk_tokens([tf.ragged.constant([[5, 6, 7, 8, 9, 10], [11]])], 4, 2)
    >>> chunks.to_list(), details["text"].numpy().tolist(), details["own_end"].numpy().tolist()
    ([[5, 6, 7, 8], [7, 8, 9, 10], [11]], [0, 0, 1], [3, 4, 1])
    """
    lengths = tf.cast(rows[0].row_lengths(), tf.int32)
    room = tf.broadcast_to(tf.maximum(room, 1), tf.shape(lengths))
    stride = tf.minimum(tf.maximum(stride, 0), room - 1)
    step = room - stride
    counts = 1 + -(-tf.maximum(lengths - room, 0) // step)
    text = repeat_indices(counts)
    number = ranges(tf.zeros_like(counts), counts)
    begin = number * tf.gather(step, text)
    size = tf.minimum(tf.gather(room, text), tf.gather(lengths, text) - begin)
    half = tf.gather(stride, text) // 2
    is_last = tf.equal(number + 1, tf.gather(counts, text))
    details = {
        "text": text,
        "begin": begin,
        "size": size,
        "own_begin": tf.where(number > 0, half, 0),
        "own_end": tf.where(is_last, size, tf.gather(step, text) + half),
    }
    starts = tf.cast(rows[0].row_starts(), tf.int32)
    position = ranges(tf.gather(starts, text) + begin, size)
    return [ragged_rows(tf.gather(row.values, position), size) for row in rows], details


def include_marks(texts, ends):
    r"""Moves ends of spans behind the combining marks that follow, which belong to a character.

    Args:
        texts: string tensor `(batch,)`.
        ends: int32 RaggedTensor `(batch, tokens)`, in characters.

    >>> include_marks(tf.constant(["Cafe\u0301!"]), tf.ragged.constant([[4, 6]])).to_list()
    [[5, 6]]
    """

    def moved():
        characters = tf.strings.unicode_split(texts + "\n", "UTF-8", errors="replace")
        is_mark = tf.strings.regex_full_match(characters.values, r"\p{M}")
        solid = true_indices(~is_mark)  # each text ends with a newline, which is no mark
        begins = tf.cast(characters.row_starts(), tf.int32)
        rows = tf.cast(ends.value_rowids(), tf.int32)
        begin = tf.gather(begins, rows)
        after = tf.gather(solid, tf.searchsorted(solid, begin + ends.values)) - begin
        return tf.where(ends.values > 0, after, ends.values)

    has_marks = tf.reduce_any(tf.strings.regex_full_match(texts, r"(?s).*\p{M}.*"))
    return ends.with_values(tf.cond(has_marks, moved, lambda: ends.values))
