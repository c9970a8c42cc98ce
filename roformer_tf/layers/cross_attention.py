import math

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.dropout import Dropout
from roformer_tf.layers.flat_dense import FlatDense


@keras.saving.register_keras_serializable(package="roformer_tf")
class CrossAttention(keras.layers.Layer):
    """Multi-head softmax attention from a decoder to the output of an encoder.

    It uses no positions: the vectors of the encoder hold theirs, and rotary distances between two
    languages mean nothing. One product makes keys and values. For generation, `build_cache`
    computes them once and `call_with_cache` attends to them at every step.

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
        super().__init__(autocast=False, **kwargs)  # as in `SelfAttention`
        check_positive_integer("num_heads", num_heads)
        check_positive_integer("head_dim", head_dim)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        width = num_heads * head_dim

        def dense(units, name):
            return FlatDense(
                units,
                use_bias=use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        self.query = dense(width, "query")
        self.key_value = dense(2 * width, "key_value")
        self.output_dense = dense(width, "output_dense")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, x_shape, encoder_sequence_shape, *shapes, **named_shapes):
        self.query.build(x_shape)
        self.key_value.build(encoder_sequence_shape)
        self.output_dense.build((*x_shape[:-1], self.num_heads * self.head_dim))
        self.built = True

    def call(self, x, encoder_sequence, attention_bias=None, training=None):
        return self.call_with_cache(x, self.build_cache(encoder_sequence), attention_bias, training)

    def build_cache(self, encoder_sequence):
        """Returns the encoder's keys and values, `(batch, num_heads, encoder_length, head_dim)` each."""
        batch, length = ops.shape(encoder_sequence)[:2]
        shape = (batch, length, 2, self.num_heads, self.head_dim)
        pair = ops.reshape(self.key_value(encoder_sequence), shape)
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
        key, value = cache
        query = ops.reshape(
            self.query(x) / math.sqrt(self.head_dim),
            (ops.shape(key)[0], -1, self.num_heads, self.head_dim),
        )
        query = ops.transpose(query, (0, 2, 1, 3))  # (batch, head, rows * length, head_dim)
        scores = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
        if attention_bias is not None:
            scores = scores + attention_bias
        if scores.shape[-1] == 1:  # a single token; Keras warns of a softmax over one number
            weights = ops.ones_like(scores)
        else:
            weights = ops.softmax(scores, axis=-1)
        weights = self.dropout_layer(ops.cast(weights, value.dtype), training=training)
        output = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        width = self.num_heads * self.head_dim
        return self.output_dense(ops.reshape(output, (*ops.shape(x)[:2], width)))

    def compute_output_spec(self, x, encoder_sequence, attention_bias=None, training=None):
        return keras.KerasTensor(
            (*x.shape[:-1], self.num_heads * self.head_dim), self.compute_dtype
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
