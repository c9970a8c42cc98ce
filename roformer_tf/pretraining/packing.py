"""Packs token chunks into training sequences, in graph."""

import tensorflow as tf

from roformer_tf.text.ragged_ops import splits_of


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


def owners(lengths):
    """0 `lengths[0]` times, 1 `lengths[1]` times, …; no length may be 0.

    `tf.repeat` costs the number of rows times the longest.

    >>> owners(tf.constant([2, 1, 3])).numpy().tolist()
    [0, 0, 1, 2, 2, 2]
    """
    splits = splits_of(lengths)
    first = tf.scatter_nd(splits[:-1, tf.newaxis], tf.ones_like(lengths), [splits[-1]])
    return tf.cumsum(first) - 1


def cut_pieces(lengths, longest):
    """Cuts pieces after every `longest` tokens, so that nothing of a long one is lost.

    Args:
        lengths: int32 tensor `(pieces,)`.
        longest: integer.

    Returns:
        int32 tensor of lengths, none over `longest`, in the order of the tokens; pieces of no token are left out.

    >>> cut_pieces(tf.constant([3, 0, 7, 4]), 3).numpy().tolist()
    [3, 3, 3, 1, 3, 1]
    """
    lengths = tf.boolean_mask(lengths, lengths > 0)
    parts = (lengths + longest - 1) // longest
    piece = owners(parts)
    part = tf.range(tf.size(piece)) - tf.gather(splits_of(parts), piece)
    return tf.minimum(tf.gather(lengths, piece) - part * longest, longest)


def pack_pieces(lengths, capacity):
    """Puts pieces into rows: best-fit decreasing.

    The longest pieces go first, each into the fullest row that has room for it, and into a new one where there is none.
    Pieces of one length are placed at once: from the fullest row with room on, each row takes as many as it holds,
    which is what one after the other gives. So the work is a sort of the rows for each length that occurs.

    Args:
        lengths: int32 tensor `(pieces,)`, each from 1 to `capacity`.
        capacity: integer, what a row holds.

    Returns:
        int32 tensor `(pieces,)`: the row of each piece; rows are numbered from 0 and none is empty.

    >>> pack_pieces(tf.constant([3, 5, 2, 8, 6, 2]), 8).numpy().tolist()
    [2, 2, 1, 0, 1, 3]

    Reference: D. S. Johnson, "Near-optimal bin packing algorithms", 1973.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    sizes, _, counts = tf.unique_with_counts(tf.gather(lengths, order))

    def body(i, free, rows):
        size, count = sizes[i], counts[i]
        # rows with room, the fullest first, and behind them as many new ones as are needed
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
        return i + 1, free - taken, tf.concat([rows, taker], 0)

    # not tf.zeros([0]): see `GraphTokenizer._matches`
    none = tf.boolean_mask(lengths, lengths < 0)
    _, _, rows = tf.while_loop(
        lambda i, *_: i < tf.size(sizes),
        body,
        [0, none, none],
        shape_invariants=[tf.TensorShape([])] + [tf.TensorShape([None])] * 2,
    )
    return tf.scatter_nd(order[:, tf.newaxis], rows, [tf.size(lengths)])


def form_rows(pieces, seed, capacity, packing, start_token_id, end_token_id, num_end_tokens=1):
    """Rows of `[CLS] piece [SEP]`, one piece or several in each, of pieces in random order.

    A piece that is too long for a row goes on in another one, behind a `[CLS]` of its own: nothing is lost.

    Args:
        pieces: dictionary of `token_ids`, int32 `(tokens,)` without special tokens; `lengths`, int32 `(pieces,)`; and
            optionally `word_starts`, bool `(tokens,)`.
        seed: integer tensor `(2,)`, of the order.
        capacity: integer, the most tokens of a row.
        packing: `"none"` for one piece in a row, otherwise as many as have room.
        start_token_id, end_token_id: integers.
        num_end_tokens: integer, how many end tokens follow a piece.

    Returns:
        Dictionary of tensors. All tokens of the first row, of the second, …: `token_ids` int32, `document_ids` int32
        (1, 2, … for the pieces of a row) and, where they were given, `word_starts` bool, `True` for special tokens and
        where a piece begins too. And of each row: `starts` and `lengths`, int32 `(rows,)`.

    >>> pieces = {"token_ids": tf.constant([5, 6, 7, 8]), "lengths": tf.constant([3, 1])}
    >>> rows = form_rows(pieces, [1, 2], 8, "full", 2, 3)
    >>> rows["lengths"].numpy().tolist(), sorted(rows["token_ids"].numpy().tolist())
    ([8], [2, 2, 3, 3, 5, 6, 7, 8])
    """
    lengths = cut_pieces(pieces["lengths"], capacity - 1 - num_end_tokens)
    starts = splits_of(lengths)[:-1]
    order = tf.argsort(tf.random.stateless_uniform([tf.size(lengths)], seed), stable=True)
    lengths, starts = tf.gather(lengths, order), tf.gather(starts, order)
    sizes = lengths + 1 + num_end_tokens
    if packing == "none":
        row = tf.range(tf.size(sizes))
    else:
        row = pack_pieces(sizes, capacity)
        order = tf.argsort(row, stable=True)
        lengths, starts, sizes, row = (tf.gather(x, order) for x in (lengths, starts, sizes, row))

    piece = owners(sizes)  # of every token
    place = tf.range(tf.size(piece)) - tf.gather(splits_of(sizes), piece) - 1  # in its piece
    inside = (place >= 0) & (place < tf.gather(lengths, piece))
    source = tf.where(inside, tf.gather(starts, piece) + place, 0)
    special = tf.where(place < 0, start_token_id, end_token_id)
    num_rows = tf.reduce_max(tf.concat([row, [-1]], 0)) + 1
    # pieces up to the first of each row
    before = tf.cumsum(
        tf.math.unsorted_segment_sum(tf.ones_like(row), row, num_rows), exclusive=True
    )
    number = tf.range(tf.size(row)) - tf.gather(before, row) + 1
    row_lengths = tf.math.unsorted_segment_sum(sizes, row, num_rows)
    rows = {
        "token_ids": tf.where(inside, tf.gather(pieces["token_ids"], source), special),
        "document_ids": tf.gather(number, piece),
        "starts": splits_of(row_lengths)[:-1],
        "lengths": row_lengths,
    }
    if "word_starts" in pieces:
        starts = tf.gather(pieces["word_starts"], source)
        rows["word_starts"] = starts | ~inside | tf.equal(place, 0)
    return rows


def take_rows(rows, index, width):
    """Some of the rows of `form_rows`, padded to one width.

    Args:
        rows: dictionary as `form_rows` gives.
        index: int32 tensor `(count,)`; the number of rows there are stands for an empty row.
        width: scalar int32 tensor.

    Returns:
        Dictionary of `lengths` `(count,)`, and `token_ids`, `document_ids` and, where they are given, `word_starts`,
        each `(count, width)`, 0 in padding.
    """
    lengths = tf.gather(tf.concat([rows["lengths"], [0]], 0), index)
    starts = tf.gather(tf.concat([rows["starts"], [0]], 0), index)
    real = tf.sequence_mask(lengths, width)
    place = tf.where(real, starts[:, tf.newaxis] + tf.range(width), 0)
    taken = {"lengths": lengths}
    for name in ("token_ids", "document_ids", "word_starts"):
        if name in rows:
            values = tf.gather(rows[name], place)
            taken[name] = tf.where(real, values, tf.zeros([], values.dtype))
    return taken
