"""One or two segments with their special tokens, truncated as bert4keras truncates them."""

import functools

import numpy as np
import tensorflow as tf

from roformer_tf.checks import check_one_of


class PairPacker:
    """Packs one or two segments of token ids into the dense inputs of a model.

    The sequence is `[start] first [end]` or `[start] first [end] second [end]`. It is truncated as
    in bert4keras (one token at a time from the longest segment, from the first of two equally long
    ones) and padded. Uses core TensorFlow ops only, so it works eagerly, in `tf.data` and in a
    SavedModel. Unlike `keras_hub.layers.MultiSegmentPacker` it truncates as the original does, and
    its padding mask does not depend on the ids.

    Preprocessors call it in a method decorated with KerasHub's `preprocessing_function`, which
    converts the outputs to tensors of the Keras backend::

        packer = PairPacker(t.start_token_id, t.end_token_id, t.pad_token_id, sequence_length=512)
        inputs = packer((t(first),))            # or packer((t(first), t(second)))

    Args:
        start_value: int. Id of the token before the first segment (`[CLS]`).
        end_value: int. Id of the token after each segment (`[SEP]`).
        pad_value: int. Id of the padding token (`[PAD]`).
        sequence_length: int or None. Static length of the result, at least 2 for single segments
            and 3 for pairs. None pads to the longest sequence of the batch and truncates nothing.
        truncate_from: `"right"` drops tokens before a segment's end token, `"left"` after the start
            token. An integer drops them at this index in the segment with its special tokens.

    Call arguments:
        segments: tuple of one or two segments; each a RaggedTensor, dense integer tensor or list
            of lists `(batch, tokens)`, or one unbatched segment `(tokens,)`.

    Returns:
        dict of int32 tensors `(batch, length)`, or `(length,)` for unbatched segments: `token_ids`;
        `segment_ids`, 0 for the first segment and its special tokens, 1 for the second, 0 for
        padding; `padding_mask`, 1 for tokens and 0 for padding. The mask depends on the lengths,
        not on the ids. It is an integer because a boolean input breaks `fit` under
        `tf.distribute.MirroredStrategy`.

    Raises:
        ValueError: If there are not one or two segments, their ranks differ, `sequence_length` has
            no room for the special tokens, or ids are not integers.

    Example:

    >>> packer = PairPacker(start_value=101, end_value=102, pad_value=0, sequence_length=8)
    >>> inputs = packer(([[5, 6, 7, 8, 9], [5]], [[1, 2], [3]]))
    >>> inputs["token_ids"].numpy().tolist()
    [[101, 5, 6, 7, 102, 1, 2, 102], [101, 5, 102, 3, 102, 0, 0, 0]]
    >>> inputs["segment_ids"].numpy().tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    >>> inputs["padding_mask"].numpy().tolist()
    [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]]
    >>> packer(([5, 6],))["token_ids"].numpy().tolist()
    [101, 5, 6, 102, 0, 0, 0, 0]

    Source: `encode` and `truncate_sequences` of bert4keras 0.11.5.
    """

    def __init__(
        self, start_value, end_value, pad_value, sequence_length=None, truncate_from="right"
    ):
        if sequence_length is not None and (
            not isinstance(sequence_length, int) or sequence_length < 2
        ):
            raise ValueError(
                "`sequence_length` must be None or an integer of at least 2, to hold the start and "
                f"the end token. Received: sequence_length={sequence_length!r}"
            )
        self.start_value = start_value
        self.end_value = end_value
        self.pad_value = pad_value
        self.sequence_length = sequence_length
        self.truncate_from = truncate_from
        self._index = truncation_index(truncate_from, True, True)

    def __call__(self, segments):
        if not isinstance(segments, tuple) or len(segments) not in (1, 2):
            raise ValueError(
                "`segments` must be a tuple of one or two segments: `packer((ids,))` or "
                f"`packer((first, second))`. Received: {type(segments).__name__}"
                + (f" of {len(segments)}" if isinstance(segments, tuple) else "")
            )
        length = self.sequence_length
        if length is not None and length < 1 + len(segments):
            raise ValueError(
                "A pair needs a `sequence_length` of at least 3 for its special tokens. "
                f"Received: sequence_length={length}"
            )
        with tf.device("CPU"):
            rows, unbatched = zip(*map(to_ragged_ids, segments), strict=True)
            if len(set(unbatched)) > 1:
                raise ValueError(
                    "Both segments must be batched, or both unbatched. Received one segment of "
                    "rank 1 and one of rank 2"
                )
            settings = self.start_value, self.end_value, self.pad_value, length, self._index
            if tf.executing_eagerly():
                rows = [row.with_row_splits_dtype(tf.int64) for row in rows]
                outputs = _packing_graph(settings, len(rows))(*rows)
            else:
                outputs = _pack(rows, *settings)
            return {k: v[0] for k, v in outputs.items()} if unbatched[0] else outputs


@functools.cache
def _packing_graph(settings, count):
    """Returns `_pack` as one graph for all batches; its operations one by one take 8 ms."""
    rows = [tf.RaggedTensorSpec([None, None], tf.int32)] * count
    return tf.function(lambda *rows: _pack(rows, *settings), input_signature=rows, autograph=False)


def _pack(rows, start, end, pad_value, length, index):
    token_ids, segment_ids, lengths = join_segments(rows, start, end, length, index)
    padding_mask = tf.sequence_mask(lengths, tf.shape(token_ids)[1], tf.int32)
    if length is not None:
        pad = [[0, 0], [0, length - tf.shape(token_ids)[1]]]
        token_ids, segment_ids, padding_mask = (
            tf.ensure_shape(tf.pad(x, pad), [None, length])
            for x in (token_ids, segment_ids, padding_mask)
        )
    token_ids = tf.where(padding_mask > 0, token_ids, pad_value)
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}


def truncation_index(truncate_from, has_start, has_end):
    """Returns the index at which the original drops tokens from a segment with special tokens.

    Source: `TokenizerBase.encode` of bert4keras 0.11.5.
    """
    if truncate_from == "right":
        return -1 - int(has_end)
    if truncate_from == "left":
        return int(has_start)
    if isinstance(truncate_from, int) and not isinstance(truncate_from, bool):
        return truncate_from
    raise ValueError(
        "`truncate_from` must be 'right', 'left' or an integer index into the tokens. "
        f"Received: truncate_from={truncate_from!r}"
    )


def to_ragged_ids(segment):
    """Converts to a RaggedTensor int32 `(batch, tokens)`; also returns whether it was unbatched."""
    if not isinstance(segment, tf.Tensor | tf.RaggedTensor):
        if isinstance(segment, list | tuple):
            # tf.ragged.constant cannot tell one empty segment, [], from a batch of one, [[]]
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
            "A segment must be token ids (rank 1) or a batch of them (rank 2). "
            f"Received: shape={segment.shape}"
        )
    unbatched = segment.shape.rank == 1
    if unbatched:
        segment = segment[tf.newaxis]
    if isinstance(segment, tf.Tensor):
        segment = tf.RaggedTensor.from_tensor(segment)
    return tf.cast(segment, tf.int32), unbatched


def join_segments(rows, start, end, maxlen, index, repeat_start=False):
    """Joins and truncates segments: `[start] first [end]`, then `second [end]` if there is one.

    bert4keras puts the special tokens around each segment. While the sum of the lengths exceeds the
    limit, it drops the token at `index` from the longest segment, from the first of equally long
    ones. At last it drops the second start token. So each segment loses one span of tokens, whose
    length and position follow from the segments' lengths: here for the whole batch at once.

    Args:
        rows: list of one or two RaggedTensors int32 `(batch, tokens)`, the segments.
        start, end: int, or None for no such token.
        maxlen: int, or None for no limit.
        index: int. See `truncation_index`.
        repeat_start: bool. Whether to keep the second start token (pattern `S*ES*E`).

    Returns:
        `(token_ids, segment_ids, lengths)`: two int32 tensors `(batch, longest)`, 0 in padding, and
        the int32 lengths `(batch,)`.
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
        # "left" and "right" always find a token to drop if there is room for the special tokens
        for n, cut, hole in zip(full, cuts, holes, strict=True):
            tf.debugging.Assert(
                tf.reduce_all((cut == 0) | (hole >= 0) & (hole <= n - cut)),
                [f"cannot truncate to {maxlen} tokens by dropping the token at index {index}"],
            )
    kept = [tf.maximum(n - cut - skip, 0) for n, cut, skip in zip(full, cuts, skips, strict=True)]
    lengths = tf.add_n(kept)
    position = tf.range(tf.reduce_max(tf.concat([lengths, [0]], 0)))[tf.newaxis]

    token_ids = tf.zeros_like(lengths)[:, tf.newaxis] * position
    segment_ids = token_ids
    begin = tf.zeros_like(lengths)
    for number, row in enumerate(rows):
        n, cut, hole, keep, skip = (x[number] for x in (full, cuts, holes, kept, skips))
        own = position - begin[:, tf.newaxis]  # position in the segment, negative before it
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


def encode_texts(tokenizer, max_length, maxlen, truncate_from, pattern, return_offsets, texts):
    """Encodes a tuple of one or two string tensors; see `RoFormerTokenizer.encode`."""
    if maxlen is not None and max_length is not None:
        raise ValueError(
            "`maxlen` is bert4keras' name of `max_length`: pass one of them. "
            f"Received: max_length={max_length!r}, maxlen={maxlen!r}"
        )
    name, limit = ("max_length", max_length) if maxlen is None else ("maxlen", maxlen)
    check_one_of("pattern", pattern, ("S*E*E", "S*ES*E"))
    lowest = int(tokenizer.end_token is not None)
    if limit is not None and (not isinstance(limit, int) or limit < lowest):
        raise ValueError(
            f"`{name}` must be None or an integer of at least {lowest}. Received: {limit!r}"
        )
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    index = truncation_index(truncate_from, start is not None, end is not None)
    join = functools.partial(
        join_segments, maxlen=limit, index=index, repeat_start=pattern == "S*ES*E"
    )
    with tf.device("CPU"):
        flat = [tf.reshape(text, [-1]) for text in texts]
        if return_offsets:
            rows = [tokenizer.graph.tokenize_with_offsets(text) for text in flat]
            ids, *offsets = zip(*rows, strict=True)
        else:
            ids, offsets = [tokenizer.graph(text) for text in flat], []
        token_ids, segment_ids, lengths = join(ids, start, end)
        # special tokens cover no character
        nothing = (None if start is None else 0, None if end is None else 0)
        outputs = token_ids, segment_ids, *(join(part, *nothing)[0] for part in offsets)
        if texts[0].shape.rank == 0:
            return tuple(output[0] for output in outputs)
        return tuple(tf.RaggedTensor.from_tensor(output, lengths) for output in outputs)
