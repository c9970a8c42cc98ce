import math

import keras
from keras import ops

from roformer_tf.layers.flat_dense import FlatDense
from roformer_tf.layers.learned_position import LearnedPosition
from roformer_tf.layers.position_scheme import BiasScheme, positions_of
from roformer_tf.layers.t5_relative_bias import T5RelativeBias


@keras.saving.register_keras_serializable(package="roformer_tf")
class TupePosition(BiasScheme):
    """Untied absolute positions of TUPE: adds scores between positions to those between tokens.

    To each score of two tokens `q · k / sqrt(2 head_dim)` it adds `(U_q p_m) · (U_k p_n) / sqrt(2
    head_dim)`, with learned positions `p`, and the bias `b_(n-m)` of T5. All blocks share them, so
    they are computed once.

    Args:
        max_sequence_length: int. Number of positions. Longer sequences raise an error.
        num_heads: Positive int.
        head_dim: int. Size of one attention head; positions have size `num_heads * head_dim`.
        relative_bias: bool. Whether to add the bias (TUPE-R); without it there are absolute
            positions alone (TUPE-A).
        bidirectional: of `T5RelativeBias`.
        untie_cls: bool. Whether to take the token at position 0, [CLS], out of the positions: its
            own scores get nothing added, and scores to it get one learned number for each head
            (`theta_2` in TUPE; its `theta_1` is the same for all keys of a query, which a softmax
            ignores). Not in equation 9.
        initializer: of all weights.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int tensor `(batch, length)`, or `None` for 0, 1, 2, …; see `LearnedPosition`.

    Returns:
        float32 tensor `(1 or batch, num_heads, query, key)`.

    Raises:
        ValueError: If the sequence is longer than the table.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import TupePosition
    >>> scheme = TupePosition(max_sequence_length=8, num_heads=2, head_dim=4)
    >>> tuple(scheme(np.zeros((3, 5), "int32")).shape)
    (1, 2, 5, 5)

    Reference: equation 9 of arXiv 2104.09864; Ke et al., arXiv 2006.15595, equations 7 to 10.
    """

    num_score_terms = 2

    def __init__(
        self,
        max_sequence_length,
        num_heads,
        head_dim,
        relative_bias=True,
        bidirectional=True,
        untie_cls=False,
        initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_sequence_length = max_sequence_length
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.relative_bias = relative_bias
        self.bidirectional = bidirectional
        self.untie_cls = untie_cls
        self.initializer = keras.initializers.get(initializer)
        width, dtype = num_heads * head_dim, self.dtype_policy
        dense = {"use_bias": False, "dtype": dtype}
        self.learned_position = LearnedPosition(
            max_sequence_length,
            width,
            self.initializer.clone(),
            dtype=dtype,
            name="learned_position",
        )
        self.query_dense = FlatDense(
            width, kernel_initializer=self.initializer.clone(), name="query_dense", **dense
        )
        self.key_dense = FlatDense(
            width, kernel_initializer=self.initializer.clone(), name="key_dense", **dense
        )
        self.t5_relative_bias = None
        if relative_bias:
            self.t5_relative_bias = T5RelativeBias(
                num_heads,
                bidirectional=bidirectional,
                embeddings_initializer=self.initializer.clone(),
                dtype=dtype,
                name="t5_relative_bias",
            )

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(
            sizes.max_sequence_length,
            sizes.num_heads,
            sizes.head_dim,
            initializer=sizes.initializer,
            **{"bidirectional": sizes.masking != "causal", **options},
        )

    def build(self, *shapes, **named_shapes):
        self.learned_position.build()
        vectors = (None, None, self.num_heads * self.head_dim)
        self.query_dense.build(vectors)
        self.key_dense.build(vectors)
        if self.t5_relative_bias is not None:
            self.t5_relative_bias.build()
        if self.untie_cls:
            self.cls_bias = self.add_weight(
                (self.num_heads, 1, 1),
                initializer=self.initializer.clone(),
                name="cls_bias",
                autocast=False,
            )

    def call(self, token_ids, position_ids=None, padding_mask=None):
        vectors = self.learned_position(token_ids, position_ids)
        query, key = self._heads(self.query_dense(vectors)), self._heads(self.key_dense(vectors))
        query = query / math.sqrt(self.num_score_terms * self.head_dim)
        bias = ops.matmul(query, ops.swapaxes(key, -1, -2))
        batch, length = ops.shape(vectors)[:2]
        bias = ops.cast(ops.reshape(bias, (batch, self.num_heads, length, length)), "float32")
        if self.t5_relative_bias is not None:
            bias = bias + self.t5_relative_bias(token_ids, position_ids)
        if self.untie_cls:
            cls = ops.equal(positions_of(token_ids, position_ids), 0)
            cls_bias = ops.cast(self.cls_bias, "float32")
            bias = ops.where(cls[:, None, None, :], cls_bias, bias)
            bias = ops.where(cls[:, None, :, None], 0.0, bias)
        return bias

    def _heads(self, x):
        """Returns the heads of `x`, `(batch * num_heads, length, head_dim)`."""
        # One axis for batch and heads: TensorFlow 2.21 on a CPU fuses a product, a scale and a sum
        # of 4 axes, and gives wrong numbers where the product is broadcast over the batch.
        batch, length = ops.shape(x)[:2]
        x = ops.reshape(x, (batch, length, self.num_heads, self.head_dim))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, length, self.head_dim))
