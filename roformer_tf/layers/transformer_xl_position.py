import math

import keras
from keras import ops

from roformer_tf import rotary
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.relative_position import distance_products


@keras.saving.register_keras_serializable(package="roformer_tf")
class TransformerXLPosition(PositionScheme):
    """Relative positions of Transformer-XL: adds scores of projected sinusoidal distances.

    The score of query `q_m` and key `k_n` is `(q_m + u) · k_n + (q_m + v) · W p_(m-n)`, divided by
    `sqrt(head_dim)`. Each block has its own `W`, `u` and `v`, and each head a part of them. As in
    Transformer-XL, `u` and `v` replace projected position queries; equation 7 of the RoFormer paper
    multiplies them by `W_q` once more.

    Args:
        num_heads: Positive int.
        head_dim: even int. Size of one attention head.
        max_wavelength: float. Base of the frequencies.
        kernel_initializer: of `W`, `u` and `v`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …

    Returns:
        float32 tensor of sines and cosines: `(2 * length - 1, num_heads * head_dim)`, of the
        distances, without `position_ids`; `(batch, length, num_heads * head_dim)`, of the
        positions, with them.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import TransformerXLPosition
    >>> scheme = TransformerXLPosition(num_heads=2, head_dim=4)
    >>> tuple(scheme(np.zeros((3, 5), "int32")).shape)
    (9, 8)

    Reference: equation 7 of arXiv 2104.09864; Dai et al., arXiv 1901.02860, section 3.3.
    """

    per_layer = True
    needs_scores = True

    def __init__(
        self,
        num_heads,
        head_dim,
        max_wavelength=10000.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.max_wavelength = max_wavelength
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self._theta = rotary.frequencies(num_heads * head_dim, max_wavelength)

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(
            sizes.num_heads, sizes.head_dim, sizes.max_wavelength, sizes.initializer, **options
        )

    def build(self, *shapes, **named_shapes):
        def weight(name, *shape):
            return self.add_weight(shape, initializer=self.kernel_initializer.clone(), name=name)

        width = self.num_heads * self.head_dim
        self.kernel = weight("kernel", width, width)
        self.content_bias = weight("content_bias", self.num_heads, self.head_dim)
        self.position_bias = weight("position_bias", self.num_heads, self.head_dim)

    def call(self, token_ids, position_ids=None, padding_mask=None):
        if position_ids is None:
            length = ops.shape(token_ids)[1]
            # query - key, for the distances key - query from `1 - length` to `length - 1`
            position_ids = ops.arange(length - 1, -length, -1)
        angle = rotary.angles(position_ids, self._theta)
        return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch, length = token_ids.shape
        width = self.num_heads * self.head_dim
        if position_ids is not None:
            return keras.KerasTensor((position_ids.shape[0], length, width), "float32")
        return keras.KerasTensor((length and 2 * length - 1, width), "float32")

    def apply_to_query_key(self, query, key, context):
        return query + ops.cast(self.content_bias, query.dtype)[:, None], key

    def apply_to_scores(self, scores, query, key, context, attention):
        dtype = query.dtype
        # `query` is (q + u) / sqrt(head_dim)
        other_bias = (self.position_bias - self.content_bias) / math.sqrt(self.head_dim)
        query = query + ops.cast(other_bias, dtype)[:, None]
        context, kernel = ops.cast(context, dtype), ops.cast(self.kernel, dtype)
        by_head = (-1, self.num_heads, self.head_dim)
        if len(context.shape) == 2:
            vectors = ops.reshape(ops.matmul(context, kernel), by_head)
            return scores + distance_products(query, ops.swapaxes(vectors, 0, 1), None)
        # From positions to distances by the addition theorem, with the projection moved to the
        # query: (W^T q) · [sin(m - n), cos(m - n)] is a product of something of m and something of
        # n.
        query = ops.matmul(query, ops.transpose(ops.reshape(kernel, by_head), (1, 2, 0)))
        of_sin, of_cos = ops.split(query, 2, axis=-1)
        context = context[:, None]
        sin, cos = ops.split(context, 2, axis=-1)
        rotated = [of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos]
        rotated = ops.concatenate(rotated, axis=-1)  # (batch, head, query, num_heads * head_dim)
        return scores + ops.matmul(rotated, ops.swapaxes(context, -1, -2))
