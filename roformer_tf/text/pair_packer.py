"""From rows of token ids to the dense inputs of a model."""

import tensorflow as tf

from roformer_tf.text.joined_rows import joined_rows, to_ragged_rows, truncation_index


class PairPacker:
    """Packs one or two rows of token ids into the dense inputs of a model.

    A row becomes `[start] first [end]` or `[start] first [end] second [end]`, truncated as
    bert4keras does (one token at a time from the longest segment, from the first of two equally
    long ones) and padded.  Only core TensorFlow ops: works eagerly, in `tf.data` and in a SavedModel.

    Preprocessors call it inside a method that is decorated with KerasHub's
    `preprocessing_function`, which turns its tensors into those of the Keras backend::

        packer = PairPacker(t.start_token_id, t.end_token_id, t.pad_token_id, sequence_length=512)
        inputs = packer((t(first),))            # or packer((t(first), t(second)))

    Args:
        start_value: int. Id of the token before the first segment (`[CLS]`).
        end_value: int. Id of the token after each segment (`[SEP]`).
        pad_value: int. Id of the padding token (`[PAD]`).
        sequence_length: int or None. Static length of the result, at least 2 for single segments
            and 3 for pairs.  None: the longest row of the batch, nothing is truncated.
        truncate_from: `"right"` drops tokens before a segment's end token, `"left"` after the start
            token; an integer drops them at that place of the segment with its special tokens.

    Call arguments:
        segments: tuple of one or two segments; each a RaggedTensor or dense integer tensor or list
            of lists, (batch, tokens), or one unbatched row, (tokens,).

    Returns:
        dict of int32 tensors (batch, length), without the batch axis for unbatched rows:
        `token_ids`; `segment_ids`, 0 for the first segment and its special tokens, 1 for the
        second, 0 for padding; `padding_mask`, 1 for the row's tokens and 0 for padding.  The mask
        goes by length, not by id, and is an integer, because a boolean input breaks `fit` under
        `tf.distribute.MirroredStrategy`.

    Raises:
        ValueError: for no or more than two segments, segments of different ranks, a
            `sequence_length` with no room for the special tokens, ids that are not integers.

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
                "`sequence_length` must be None or an integer of at least 2, the room for the start "
                f"and the end token. Received: sequence_length={sequence_length!r}"
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
            rows, unbatched = zip(*map(to_ragged_rows, segments), strict=True)
            if len(set(unbatched)) > 1:
                raise ValueError(
                    "Both segments must be batched, or both unbatched. Received one segment of "
                    "rank 1 and one of rank 2"
                )
            token_ids, segment_ids, lengths = joined_rows(
                rows, self.start_value, self.end_value, length, self._index
            )
            padding_mask = tf.sequence_mask(lengths, tf.shape(token_ids)[1], tf.int32)
            if length is not None:
                pad = [[0, 0], [0, length - tf.shape(token_ids)[1]]]
                token_ids, segment_ids, padding_mask = (
                    tf.ensure_shape(tf.pad(x, pad), [None, length])
                    for x in (token_ids, segment_ids, padding_mask)
                )
            token_ids = tf.where(padding_mask > 0, token_ids, self.pad_value)
            outputs = {
                "token_ids": token_ids,
                "segment_ids": segment_ids,
                "padding_mask": padding_mask,
            }
            return {k: v[0] for k, v in outputs.items()} if unbatched[0] else outputs
