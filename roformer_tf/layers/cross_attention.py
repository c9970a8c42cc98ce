import math

import keras
from keras import ops

from roformer_tf.layers.flat_dense import flatten, make_dense
from roformer_tf.layers.self_attention import Attention


@keras.saving.register_keras_serializable(package="roformer_tf")
class CrossAttention(Attention):
    """Multi-head softmax attention from a decoder to the output of an encoder.

    It uses no positions: rotary distances between two languages mean nothing. One product computes
    keys and values. For generation, `build_cache` computes them once and `call_with_cache` attends
    to them at every step.

    Args:
        num_heads: int. Number of attention heads.
        head_dim: int. Size of each head. The layer is `num_heads * head_dim` wide.
        dropout: float. Rate on the attention probabilities.
        use_bias: bool. Whether the projections have biases.
        kernel_initializer: Initializer of all projections.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)` for the queries.
        encoder_sequence: Tensor `(batch, encoder_length, encoder_dim)` for keys and values.
        attention_bias: float32 tensor that broadcasts to
            `(batch, num_heads, length, encoder_length)`, such as `AttentionMask()` of the encoder's
            padding mask, or `None`.

    Returns:
        Tensor `(batch, length, num_heads * head_dim)`.

    Raises:
        ValueError: If `num_heads` or `head_dim` is not a positive integer.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import CrossAttention
    >>> layer = CrossAttention(num_heads=2, head_dim=4)
    >>> x, encoder_sequence = np.ones((1, 3, 8), "float32"), np.ones((1, 5, 8), "float32")
    >>> tuple(layer(x, encoder_sequence).shape)
    (1, 3, 8)

    Two beams of a sentence read the same keys and values:

    >>> cache = layer.build_cache(encoder_sequence)
    >>> tuple(layer.call_with_cache(np.ones((2, 1, 8), "float32"), cache).shape)
    (2, 1, 8)

    Reference: Vaswani et al., arXiv 1706.03762, section 3.2.3.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, dropout, use_bias, kernel_initializer, **kwargs)
        self.query = make_dense(self, num_heads * head_dim, "query")
        self.key_value = make_dense(self, 2 * num_heads * head_dim, "key_value")
        self.output_dense = make_dense(self, num_heads * head_dim, "output_dense")

    def build(self, x_shape, encoder_sequence_shape, *shapes, **named_shapes):
        self.query.build(x_shape)
        if not self.key_value.built:  # `build_cache` builds it
            self.key_value.build(encoder_sequence_shape)
        self.output_dense.build((*x_shape[:-1], self.num_heads * self.head_dim))

    def call(self, x, encoder_sequence, attention_bias=None, training=None):
        return self.call_with_cache(x, self.build_cache(encoder_sequence), attention_bias, training)

    def build_cache(self, encoder_sequence):
        """Returns keys and values, `(batch, num_heads, encoder_length, head_dim)` each."""
        batch, length = ops.shape(encoder_sequence)[:2]
        shape = (batch, length, 2, self.num_heads, self.head_dim)
        pair = ops.reshape(self.key_value(flatten(encoder_sequence)), shape)
        return tuple(ops.unstack(ops.transpose(pair, (2, 0, 3, 1, 4)), 2))

    def call_with_cache(self, x, cache, attention_bias=None, training=None):
        """Attends to keys and values that `build_cache` computed.

        Args:
            x: Tensor `(beams * batch, length, hidden_dim)`. The beams of a sentence follow each
                other and share its keys and values.
            cache: Output of `build_cache` for `batch` encoder sequences.
            attention_bias: float32 tensor that broadcasts to
                `(batch, num_heads, 1, encoder_length)`, or `None`.
            training: bool. Whether to apply dropout.

        Returns:
            Tensor `(beams * batch, length, num_heads * head_dim)`.
        """
        if not self.built:
            self.build(x.shape, None)
        key, value = cache
        query = ops.reshape(
            self.query(flatten(x)) / math.sqrt(self.head_dim),
            (ops.shape(key)[0], -1, self.num_heads, self.head_dim),
        )
        query = ops.transpose(query, (0, 2, 1, 3))  # (batch, head, rows * length, head_dim)
        scores = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
        output, _ = self.average(scores, value, attention_bias, training)
        return self.merge(output, ops.shape(x)[:2])
