"""Packs chunks of tokens into training sequences, all in a graph."""

import tensorflow as tf

from roformer_tf.text.ragged_ops import lengths_to_splits, repeat_indices


def split_long_chunks(lengths, longest):
    """Splits chunks after every `longest` tokens, so that no token of a long one is lost.

    Args:
        lengths: int32 tensor `(chunks,)`.
        longest: int.

    Returns:
        int32 tensor. Lengths up to `longest`, in the order of the tokens; empty chunks are left
        out.

    >>> split_long_chunks(tf.constant([3, 0, 7, 4]), 3).numpy().tolist()
    [3, 3, 3, 1, 3, 1]
    """
    lengths = tf.boolean_mask(lengths, lengths > 0)
    parts = (lengths + longest - 1) // longest
    chunk = repeat_indices(parts)
    part = tf.range(tf.size(chunk)) - tf.gather(lengths_to_splits(parts), chunk)
    return tf.minimum(tf.gather(lengths, chunk) - part * longest, longest)


def pack_chunks(lengths, capacity):
    """Assigns chunks to sequences by best-fit decreasing.

    The longest chunks go first, each into the fullest sequence that has room for it, or into a new
    one. Chunks of one length are assigned together: from the fullest sequence with room on, each
    takes as many as it holds, which is what one after the other gives. So the work is one sort of
    the sequences per distinct length.

    Args:
        lengths: int32 tensor `(chunks,)`, each from 1 to `capacity`.
        capacity: int. Number of tokens that a sequence holds.

    Returns:
        int32 tensor `(chunks,)`. The sequence of each chunk, numbered from 0; none is empty.

    >>> pack_chunks(tf.constant([3, 5, 2, 8, 6, 2]), 8).numpy().tolist()
    [2, 2, 1, 0, 1, 3]

    Reference: D. S. Johnson, "Near-optimal bin packing algorithms", 1973.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    sizes, _, counts = tf.unique_with_counts(tf.gather(lengths, order))

    def body(i, free, sequences):
        size, count = sizes[i], counts[i]
        # sequences with room, the fullest first, followed by as many new ones as are needed
        fit = tf.cast(tf.where(free >= size)[:, 0], tf.int32)
        fit = tf.gather(fit, tf.argsort(tf.gather(free, fit), stable=True))
        left = tf.maximum(count - tf.reduce_sum(tf.gather(free, fit) // size), 0)
        each = capacity // size
        new = (left + each - 1) // each
        fit = tf.concat([fit, tf.size(free) + tf.range(new)], 0)
        free = tf.concat([free, tf.fill([new], capacity)], 0)
        ends = tf.cumsum(tf.gather(free, fit) // size)
        taker = tf.gather(fit, tf.searchsorted(ends, tf.range(count), side="right"))
        taken = tf.math.unsorted_segment_sum(tf.fill([count], size), taker, tf.size(free))
        return i + 1, free - taken, tf.concat([sequences, taker], 0)

    # not tf.zeros([0]): see `GraphTokenizer._matches`
    none = tf.boolean_mask(lengths, lengths < 0)
    _, _, sequences = tf.while_loop(
        lambda i, *_: i < tf.size(sizes),
        body,
        [0, none, none],
        shape_invariants=[tf.TensorShape([])] + [tf.TensorShape([None])] * 2,
    )
    return tf.scatter_nd(order[:, tf.newaxis], sequences, [tf.size(lengths)])


def form_sequences(chunks, seed, capacity, packing, start_token_id, end_token_id, num_end_tokens=1):
    """Forms sequences of `[CLS] chunk [SEP]`, one or several chunks each, in random order.

    A chunk that is too long for a sequence continues in another one, behind a `[CLS]` of its own:
    no token is lost.

    Args:
        chunks: dict with `token_ids`, int32 `(tokens,)` without special tokens; `lengths`, int32
            `(chunks,)`; and optionally `word_starts`, bool `(tokens,)`.
        seed: integer tensor `(2,)`. Seed of the order.
        capacity: int. Maximum number of tokens of a sequence.
        packing: str. `"none"` for one chunk per sequence, otherwise as many as fit.
        start_token_id, end_token_id, num_end_tokens: int. What is added to each chunk.

    Returns:
        Dict of tensors. The tokens of all sequences, one after the other: `token_ids`, int32;
        `document_ids`, int32, which numbers the chunks of each sequence from 1; and `word_starts`,
        bool, if given, which is also `True` for special tokens and the first token of a chunk. For
        each sequence: `starts` and `lengths`, int32 `(sequences,)`.

    >>> chunks = {"token_ids": tf.constant([5, 6, 7, 8]), "lengths": tf.constant([3, 1])}
    >>> sequences = form_sequences(chunks, [1, 2], 8, "full", 2, 3)
    >>> sequences["lengths"].numpy().tolist(), sorted(sequences["token_ids"].numpy().tolist())
    ([8], [2, 2, 3, 3, 5, 6, 7, 8])
    """
    lengths = split_long_chunks(chunks["lengths"], capacity - 1 - num_end_tokens)
    starts = lengths_to_splits(lengths)[:-1]
    order = tf.argsort(tf.random.stateless_uniform([tf.size(lengths)], seed), stable=True)
    lengths, starts = tf.gather(lengths, order), tf.gather(starts, order)
    sizes = lengths + 1 + num_end_tokens
    if packing == "none":
        sequence = tf.range(tf.size(sizes))
    else:
        sequence = pack_chunks(sizes, capacity)
        order = tf.argsort(sequence, stable=True)
        lengths, starts, sizes, sequence = (
            tf.gather(x, order) for x in (lengths, starts, sizes, sequence)
        )

    chunk = repeat_indices(sizes)  # of every token
    # in its chunk, -1 for the start token
    position = tf.range(tf.size(chunk)) - tf.gather(lengths_to_splits(sizes), chunk) - 1
    inside = (position >= 0) & (position < tf.gather(lengths, chunk))
    source = tf.where(inside, tf.gather(starts, chunk) + position, 0)
    special = tf.where(position < 0, start_token_id, end_token_id)
    count = tf.reduce_max(tf.concat([sequence, [-1]], 0)) + 1
    num_chunks = tf.math.unsorted_segment_sum(tf.ones_like(sequence), sequence, count)
    before = tf.cumsum(num_chunks, exclusive=True)  # chunks before those of each sequence
    number = tf.range(tf.size(sequence)) - tf.gather(before, sequence) + 1
    sequence_lengths = tf.math.unsorted_segment_sum(sizes, sequence, count)
    sequences = {
        "token_ids": tf.where(inside, tf.gather(chunks["token_ids"], source), special),
        "document_ids": tf.gather(number, chunk),
        "starts": lengths_to_splits(sequence_lengths)[:-1],
        "lengths": sequence_lengths,
    }
    if "word_starts" in chunks:
        starts = tf.gather(chunks["word_starts"], source)
        sequences["word_starts"] = starts | ~inside | tf.equal(position, 0)
    return sequences


def rounded_width(width):
    """Rounds the width of a batch up: to a multiple of 1 up to 32, 2 up to 64, 4 up to 128, then 8.

    So there are few different shapes, and rounding adds a fiftieth to the width on average.

    >>> [int(rounded_width(width)) for width in (31, 33, 65, 127, 129)]
    [31, 34, 68, 128, 136]
    """
    step = tf.bitwise.left_shift(1, sum(tf.cast(width > w, tf.int32) for w in (32, 64, 128)))
    return (width + step - 1) // step * step


def take_sequences(sequences, index, max_length):
    """Takes some of the sequences of `form_sequences`, padded to the rounded width of the longest.

    Args:
        sequences: dict, as returned by `form_sequences`.
        index: int32 tensor `(count,)`. The number of sequences stands for an empty one.
        max_length: int. The width is rounded up to no more than this.

    Returns:
        Dict with `lengths`, `(count,)`, and `token_ids`, `document_ids` and, if given,
        `word_starts`, each `(count, width)` and 0 in padding.
    """
    lengths = tf.gather(tf.concat([sequences["lengths"], [0]], 0), index)
    width = tf.minimum(rounded_width(tf.reduce_max(lengths)), max_length)
    starts = tf.gather(tf.concat([sequences["starts"], [0]], 0), index)
    real = tf.sequence_mask(lengths, width)
    source = tf.where(real, starts[:, tf.newaxis] + tf.range(width), 0)
    taken = {"lengths": lengths}
    for name in ("token_ids", "document_ids", "word_starts"):
        if name in sequences:
            values = tf.gather(sequences[name], source)
            taken[name] = tf.where(real, values, tf.zeros([], values.dtype))
    return taken


def positions_in_documents(document_ids):
    """Counts 0, 1, 2, … from the start of each document; 0 in padding.

    Args:
        document_ids: int32 tensor `(batch, sequence_length)`. 1, 2, … for the documents of a
            sequence, one after the other; 0 for padding.

    Returns:
        int32 tensor `(batch, sequence_length)`.

    >>> positions_in_documents(tf.constant([[1, 1, 1, 2, 2, 0, 0]])).numpy().tolist()
    [[0, 1, 2, 0, 1, 0, 0]]
    """
    position = tf.range(tf.shape(document_ids)[1])
    return tf.where(document_ids > 0, position - _bound(document_ids, "left"), 0)


def document_lengths(document_ids):
    """Returns for each token the number of tokens of its document; 0 for padding.

    >>> document_lengths(tf.constant([[1, 1, 1, 2, 2, 0, 0]])).numpy().tolist()
    [[3, 3, 3, 2, 2, 0, 0]]
    """
    length = _bound(document_ids, "right") - _bound(document_ids, "left")
    return tf.where(document_ids > 0, length, 0)


def _bound(document_ids, side):
    """Returns where the document of each token starts ("left"), or ends ("right"), exclusive."""
    ascending = tf.where(document_ids > 0, document_ids, document_ids.dtype.max)
    return tf.searchsorted(ascending, ascending, side)
