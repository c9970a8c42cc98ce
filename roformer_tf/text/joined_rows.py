"""Rows of token ids with their special tokens, joined and truncated as bert4keras does."""

import numpy as np
import tensorflow as tf


def truncation_index(truncate_from, has_start, has_end):
    """The place from which the original pops tokens, in a row that has its special tokens.

    Source: `TokenizerBase.encode` of bert4keras 0.11.5.
    """
    if truncate_from == "right":
        return -1 - int(has_end)
    if truncate_from == "left":
        return int(has_start)
    if isinstance(truncate_from, int) and not isinstance(truncate_from, bool):
        return truncate_from
    raise ValueError(
        "`truncate_from` must be 'right', 'left' or an integer place in the row of tokens. "
        f"Received: truncate_from={truncate_from!r}"
    )


def to_ragged_rows(segment):
    """-> RaggedTensor int32 (batch, tokens), and whether `segment` was one unbatched row."""
    if not isinstance(segment, tf.Tensor | tf.RaggedTensor):
        if isinstance(segment, list | tuple):
            # tf.ragged.constant cannot guess that [] is a row and [[]] a batch of one row
            nested = bool(segment) and not isinstance(segment[0], int | np.integer)
            rows = [np.asarray(row, np.int32) for row in (segment if nested else [segment])]
            flat = np.concatenate(rows) if rows else np.zeros([0], np.int32)
            ragged = tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])
            return ragged, not nested
        segment = tf.convert_to_tensor(np.asarray(segment))
    if not segment.dtype.is_integer:
        raise ValueError(f"Token ids must be integers. Received: dtype={segment.dtype.name}")
    if segment.shape.rank not in (1, 2):
        raise ValueError(
            "A segment must be one row of token ids (rank 1) or a batch of rows (rank 2). "
            f"Received: shape={segment.shape}"
        )
    unbatched = segment.shape.rank == 1
    if unbatched:
        segment = segment[tf.newaxis]
    if isinstance(segment, tf.Tensor):
        segment = tf.RaggedTensor.from_tensor(segment)
    return tf.cast(segment, tf.int32), unbatched


def joined_rows(rows, start, end, maxlen, index, repeat_start=False):
    """[start] first [end] (second [end]), truncated, as if made one token at a time.

    bert4keras puts the special tokens around every segment, then, while the sum of the lengths is
    over the limit, pops the token at `index` of the longest row, of the first one of equally long
    rows, and last drops the second start token.  So every row loses `cut` tokens in one piece, and
    both `cut` and its place follow from the lengths alone: all rows of the batch at once.

    Args:
        rows: list of one or two RaggedTensors int32 (batch, tokens).
        start, end: int, or None for no such token.
        maxlen: int, or None for no limit.
        index: int, see `truncation_index`.
        repeat_start: keep the start token of the second segment (pattern `S*ES*E`).

    Returns:
        token_ids, segment_ids: int32 (batch, longest), 0 after a row's end; lengths: int32 (batch,).
    """
    n_start, n_end = int(start is not None), int(end is not None)
    skips = [0, 0 if repeat_start else n_start][: len(rows)]
    full = [tf.cast(row.row_lengths(), tf.int32) + n_start + n_end for row in rows]
    cuts = [tf.zeros_like(n) for n in full]
    if maxlen is not None:
        room = maxlen + int(len(rows) == 2 and not repeat_start)
        over = tf.maximum(tf.add_n(full) - room, 0)
        if len(rows) == 1:
            cuts = [over]
        else:
            more = full[0] - full[1]
            cuts = [tf.clip_by_value(more, 0, over), tf.clip_by_value(-more, 0, over)]
            over -= cuts[0] + cuts[1]
            cuts = [cuts[0] + (over + 1) // 2, cuts[1] + over // 2]
    holes = [
        index if index >= 0 else n + index + 1 - cut for n, cut in zip(full, cuts, strict=True)
    ]
    if maxlen is not None and (index not in (1, -2) or maxlen < 3):
        # "left" and "right" always find a token to drop when there is room for the special tokens
        for n, cut, hole in zip(full, cuts, holes, strict=True):
            tf.debugging.Assert(
                tf.reduce_all((cut == 0) | (hole >= 0) & (hole <= n - cut)),
                [f"cannot truncate to {maxlen} tokens by dropping the token at place {index}"],
            )
    kept = [tf.maximum(n - cut - skip, 0) for n, cut, skip in zip(full, cuts, skips, strict=True)]
    lengths = tf.add_n(kept)
    place = tf.range(tf.reduce_max(tf.concat([lengths, [0]], 0)))[tf.newaxis]

    token_ids = tf.zeros_like(lengths)[:, tf.newaxis] * place
    segment_ids = token_ids
    begin = tf.zeros_like(lengths)
    for number, row in enumerate(rows):
        n, cut, hole, keep, skip = (x[number] for x in (full, cuts, holes, kept, skips))
        own = place - begin[:, tf.newaxis]  # place in the segment, negative before it
        inside = (own >= 0) & (own < keep[:, tf.newaxis])
        own += skip
        own = tf.where(
            own < tf.broadcast_to(hole, tf.shape(n))[:, tf.newaxis], own, own + cut[:, tf.newaxis]
        )
        own -= n_start
        size = (n - n_start - n_end)[:, tf.newaxis]
        values = tf.concat([row.values, [0]], 0)
        at = tf.cast(row.row_starts(), tf.int32)[:, tf.newaxis] + own
        is_token = inside & (own >= 0) & (own < size)
        ids = tf.gather(values, tf.where(is_token, at, 0))
        if start is not None:
            ids = tf.where(own < 0, start, ids)
        if end is not None:
            ids = tf.where(own >= size, end, ids)
        token_ids = tf.where(inside, ids, token_ids)
        segment_ids = tf.where(inside, number, segment_ids)
        begin += keep
    return token_ids, segment_ids, lengths
