"""Long texts as overlapping chunks of tokens."""

import tensorflow as tf

from roformer_tf.text.ragged_ops import ranges, true_indices


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

    >>> import tensorflow as tf
    >>> from roformer_tf.text.chunks import chunk_tokens
    >>> (chunks,), details = chunk_tokens([tf.ragged.constant([[5, 6, 7, 8, 9, 10], [11]])], 4, 2)
    >>> chunks.to_list(), details["text"].numpy().tolist(), details["own_end"].numpy().tolist()
    ([[5, 6, 7, 8], [7, 8, 9, 10], [11]], [0, 0, 1], [3, 4, 1])
    """
    lengths = tf.cast(rows[0].row_lengths(), tf.int32)
    room = tf.broadcast_to(tf.maximum(room, 1), tf.shape(lengths))
    stride = tf.minimum(tf.maximum(stride, 0), room - 1)
    step = room - stride
    counts = 1 + -(-tf.maximum(lengths - room, 0) // step)
    text = tf.repeat(tf.range(tf.size(counts)), counts)
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
    chunks = [
        tf.RaggedTensor.from_row_lengths(tf.gather(row.values, position), size) for row in rows
    ]
    return chunks, details


def include_marks(texts, ends):
    r"""Moves ends of spans behind the combining marks that follow, which belong to a character.

    Args:
        texts: string tensor `(batch,)`.
        ends: int32 RaggedTensor `(batch, tokens)`, in characters.

    Returns:
        int32 RaggedTensor `(batch, tokens)`.

    >>> import tensorflow as tf
    >>> from roformer_tf.text.chunks import include_marks
    >>> include_marks(tf.constant(["Cafe\u0301!"]), tf.ragged.constant([[4, 6]])).to_list()
    [[5, 6]]
    """

    def moved():
        characters = tf.strings.unicode_split(texts + "\n", "UTF-8", errors="replace")
        is_mark = tf.strings.regex_full_match(characters.values, r"\p{M}")
        solid = true_indices(~is_mark)  # the newline of each text is one
        begins = tf.cast(characters.row_starts(), tf.int32)
        rows = tf.cast(ends.value_rowids(), tf.int32)
        begin = tf.gather(begins, rows)
        after = tf.gather(solid, tf.searchsorted(solid, begin + ends.values)) - begin
        return tf.where(ends.values > 0, after, ends.values)

    has_marks = tf.reduce_any(tf.strings.regex_full_match(texts, r"(?s).*\p{M}.*"))
    return ends.with_values(tf.cond(has_marks, moved, lambda: ends.values))
