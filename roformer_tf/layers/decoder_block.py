from functools import partial

import keras
from keras import ops

from roformer_tf.layers.cross_attention import CrossAttention
from roformer_tf.layers.encoder_block import EncoderBlock
from roformer_tf.layers.rms_norm import make_norm


@keras.saving.register_keras_serializable(package="roformer_tf")
class DecoderBlock(EncoderBlock):
    """Post-norm block of a decoder: self-attention, attention to the encoder's output, feed-forward network.

    An `EncoderBlock` with `CrossAttention` between its two parts; after each of the three the input is added and the
    sum is normalised. Causality comes from `attention_bias`. Positions enter the self-attention only.

    Args:
        hidden_dim: positive integer, also of the encoder_sequence.
        intermediate_dim: positive integer.
        num_heads: positive integer that divides `hidden_dim`.
        **kwargs: of `EncoderBlock`; `dropout`, `attention_dropout` and `kernel_initializer` hold for the
            cross-attention too.

    Call arguments:
        x: tensor `(batch, length, hidden_dim)`.
        encoder_sequence: tensor `(batch, encoder_length, hidden_dim)`, the output of the encoder.
        attention_bias: float32 tensor that broadcasts to `(batch, num_heads, length, length)`, such as
            `AttentionMask("causal")` makes, or `None`.
        encoder_attention_bias: float32 tensor that broadcasts to `(batch, num_heads, 1, encoder_length)`, of the padding of the
            encoder_sequence, or `None`.
        position: the context made by `position_scheme`, or `None`.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_dim`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import AttentionMask, DecoderBlock
    >>> block = DecoderBlock(hidden_dim=8, intermediate_dim=16, num_heads=2, activation="relu")
    >>> x, encoder_sequence = np.ones((1, 3, 8), "float32"), np.ones((1, 5, 8), "float32")
    >>> tuple(block(x, encoder_sequence, AttentionMask("causal")(np.ones((1, 3)))).shape)
    (1, 3, 8)

    Reference: Vaswani et al., arXiv 1706.03762, section 3.1; section 4.1 of arXiv 2104.09864.
    """

    def __init__(self, hidden_dim, intermediate_dim, num_heads, **kwargs):
        super().__init__(hidden_dim, intermediate_dim, num_heads, **kwargs)
        self.cross_attention = CrossAttention(
            num_heads,
            hidden_dim // num_heads,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="cross_attention",
        )
        self.cross_attention_norm = make_norm(
            self.norm_kind, self.epsilon, dtype=self.dtype_policy, name="cross_attention_norm"
        )

    def build(self, x_shape, encoder_sequence_shape, *shapes, **named_shapes):
        super().build(x_shape)
        self.cross_attention.build(x_shape, encoder_sequence_shape)
        self.cross_attention_norm.build(x_shape)

    def call(
        self,
        x,
        encoder_sequence,
        attention_bias=None,
        encoder_attention_bias=None,
        position=None,
        training=None,
    ):
        x = ops.cast(x, self.compute_dtype)
        run = partial(self._run_decoder, training=training)
        if self.recompute_activations and training:
            return self._recomputed(
                run, x, encoder_sequence, attention_bias, encoder_attention_bias, position
            )
        return run(x, encoder_sequence, attention_bias, encoder_attention_bias, position)

    def call_with_cache(
        self,
        x,
        cache,
        cache_update_index,
        keys_values,
        attention_bias=None,
        encoder_attention_bias=None,
        position=None,
    ):
        """The next tokens, given the cached keys and values of all earlier ones.

        Args:
            x: tensor `(rows * batch, length, hidden_dim)`: of each encoder_sequence one row, or several that follow each other.
            cache: of `build_cache`, or of the step before.
            cache_update_index: int scalar, the place of the first of these tokens.
            keys_values: what `cross_attention.keys_values` returned for `batch` memories.
            attention_bias: as of `SelfAttention.step`.
            encoder_attention_bias: see `call`.
            position: the context made by `position_scheme` for these tokens' own positions.

        Returns:
            Tuple of the outputs, of the shape of `x`, and the new cache.
        """
        x = ops.cast(x, self.compute_dtype)
        update, cache = self.attention.call_with_cache(
            x, cache, cache_update_index, attention_bias=attention_bias, position=position
        )
        return self._after_attention(x, update, keys_values, encoder_attention_bias), cache

    def _run_decoder(
        self, x, encoder_sequence, attention_bias, encoder_attention_bias, position, training
    ):
        update = self.attention(
            x, attention_bias=attention_bias, position=position, training=training
        )
        keys_values = self.cross_attention.keys_values(encoder_sequence)
        return self._after_attention(x, update, keys_values, encoder_attention_bias, training)

    def _after_attention(self, x, update, keys_values, encoder_attention_bias, training=None):
        """What follows the self-attention, whose output is `update`."""
        x = self.attention_norm(x + self.dropout_layer(update, training=training))
        update = self.cross_attention.attend(
            x, keys_values, encoder_attention_bias, training=training
        )
        x = self.cross_attention_norm(x + self.dropout_layer(update, training=training))
        update = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout_layer(update, training=training))

    def compute_output_spec(
        self,
        x,
        encoder_sequence,
        attention_bias=None,
        encoder_attention_bias=None,
        position=None,
        training=None,
    ):
        return keras.KerasTensor(x.shape, self.compute_dtype)
