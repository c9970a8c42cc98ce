import keras
from keras import ops

MASKINGS = ("bidirectional", "causal", "unilm")

# Finite, so that a row without a visible key gives the mean of all values and not NaN; far enough below any score that
# exp() of the difference is exactly 0 in float32.
_HIDDEN = -1e9


@keras.saving.register_keras_serializable(package="roformer_tf")
class AttentionMask(keras.layers.Layer):
    """Which keys a query sees, as a float32 tensor to be added to the attention scores: 0 visible, -1e9 hidden.

    Padding hides *keys*. Queries at padded positions are computed like any other, as in the original.

    * `"bidirectional"`: every query sees every key that is not padding.
    * `"causal"`: query i sees keys j <= i (bert4keras' `application="lm"`).
    * `"unilm"`: query i sees key j if `cumsum(segment_ids)[j] <= cumsum(segment_ids)[i]`: segment 0 sees all of
      segment 0, and segment 1 sees segment 0 and its own past (bert4keras' `application="unilm"`).

    With `document_ids`, for rows into which several documents are packed, a query besides sees its own document only:
    each of these rules holds within it, as if it were alone.

    Args:
        masking: `"bidirectional"`, `"causal"` or `"unilm"`.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens, 0 for padding.
        segment_ids: int tensor `(batch, length)`; needed for `"unilm"` only.
        document_ids: int tensor `(batch, length)`, the same number for all tokens of a document, or `None` for rows of
            one document.

    Returns:
        float32 tensor `(batch, 1, 1, length)` (bidirectional without `document_ids`) or `(batch, 1, length, length)`:
        batch, head, query, key.

    Raises:
        ValueError: if `masking` is unknown, or `segment_ids` is missing for `"unilm"`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import AttentionMask
    >>> bias = AttentionMask("causal")(np.array([[1, 1, 0]]))
    >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    >>> bias = AttentionMask()(np.array([[1, 1, 1]]), document_ids=np.array([[1, 1, 2]]))
    >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    Reference: `LM_Mask` and `UniLM_Mask` of bert4keras' `models.py`.
    """

    def __init__(self, masking="bidirectional", **kwargs):
        super().__init__(**kwargs)
        if masking not in MASKINGS:
            raise ValueError(f"`masking` must be one of {MASKINGS}. Received: masking={masking!r}")
        self.masking = masking

    def build(self, *shapes, **named_shapes):
        self.built = True

    def call(self, padding_mask, segment_ids=None, document_ids=None):
        visible = ops.cast(padding_mask, "bool")[:, None, None, :]  # (batch, 1, 1, key)
        if self.masking == "causal":
            index = ops.arange(ops.shape(padding_mask)[1])
            visible = ops.logical_and(visible, (index[None, :] <= index[:, None])[None, None])
        elif self.masking == "unilm":
            if segment_ids is None:
                raise ValueError(
                    "`masking='unilm'` needs `segment_ids`. Received: segment_ids=None"
                )
            index = ops.cumsum(ops.cast(segment_ids, "int32"), axis=1)
            prefix = index[:, None, :] <= index[:, :, None]  # (batch, query, key)
            visible = ops.logical_and(visible, prefix[:, None])
        if document_ids is not None:
            # the rules above compare places, or counts of segments, of two tokens: what stands before their document
            # adds the same to both
            same = ops.equal(document_ids[:, None, :], document_ids[:, :, None])
            visible = ops.logical_and(visible, same[:, None])
        return ops.where(visible, 0.0, _HIDDEN)

    def compute_output_spec(self, padding_mask, segment_ids=None, document_ids=None):
        batch, length = padding_mask.shape
        queries = 1 if self.masking == "bidirectional" and document_ids is None else length
        return keras.KerasTensor((batch, 1, queries, length), dtype="float32")

    def get_config(self):
        return {**super().get_config(), "masking": self.masking}
