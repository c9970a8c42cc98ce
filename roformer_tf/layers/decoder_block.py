import keras
from keras import ops

from roformer_tf.layers.cross_attention import CrossAttention
from roformer_tf.layers.encoder_block import EncoderBlock
from roformer_tf.layers.rms_norm import make_norm


@keras.saving.register_keras_serializable(package="roformer_tf")
class DecoderBlock(EncoderBlock):
    """Post-norm block of a decoder: self-attention, attention to the encoder's output, feed-forward
    network.

    Adds `CrossAttention` between the two parts of an `EncoderBlock`. After each of the three parts
    the input is added and the sum is normalised. `attention_bias` makes the block causal. Only the
    self-attention sees positions.

    Args:
        hidden_dim: int. Hidden size, also of `encoder_sequence`.
        intermediate_dim: Positive int.
        num_heads: int. Number of attention heads; must divide `hidden_dim`.
        **kwargs: Arguments of `EncoderBlock`. `dropout`, `attention_dropout` and
            `kernel_initializer` apply to the cross-attention too.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        encoder_sequence: Tensor `(batch, encoder_length, hidden_dim)`, the output of the encoder.
        attention_bias: float32 tensor that broadcasts to `(batch, num_heads, length, length)`, such
            as `AttentionMask("causal")` makes, or `None`.
        encoder_attention_bias: float32 tensor that broadcasts to `(batch, num_heads, 1,
            encoder_length)`, of the padding of the encoder_sequence, or `None`.
        position: Context from `position_scheme`, or `None`.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`.

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
        return self._run(
            self._forward,
            training,
            x,
            encoder_sequence,
            attention_bias,
            encoder_attention_bias,
            position,
        )

    def call_with_cache(
        self,
        x,
        cache,
        cache_update_index,
        cross_attention_cache,
        attention_bias=None,
        encoder_attention_bias=None,
        position=None,
    ):
        """Computes the next tokens with a key/value cache of the earlier ones.

        Args:
            x: Tensor `(beams * batch, length, hidden_dim)`. The beams of each encoder sequence
                follow each other.
            cache: Output of `build_cache`, or of the call before.
            cache_update_index: int or scalar int tensor. Position of the first of these tokens.
            cross_attention_cache: what `cross_attention.build_cache` returned for the `batch`
                encoder sequences.
            attention_bias: See `SelfAttention.call_with_cache`.
            encoder_attention_bias: See `call`.
            position: Context from `position_scheme` for these tokens' positions.

        Returns:
            Tuple of the outputs, of the shape of `x`, and the new cache.
        """
        x = ops.cast(x, self.compute_dtype)
        update, cache = self.attention.call_with_cache(
            x, cache, cache_update_index, attention_bias=attention_bias, position=position
        )
        x = self._after_self_attention(x, update, cross_attention_cache, encoder_attention_bias)
        return x, cache

    def _forward(
        self, x, encoder_sequence, attention_bias, encoder_attention_bias, position, training
    ):
        update = self.attention(
            x, attention_bias=attention_bias, position=position, training=training
        )
        cache = self.cross_attention.build_cache(encoder_sequence)
        return self._after_self_attention(x, update, cache, encoder_attention_bias, training)

    def _after_self_attention(self, x, update, cache, attention_bias, training=None):
        x = self._add(self.attention_norm, x, update, training)
        update = self.cross_attention.call_with_cache(x, cache, attention_bias, training=training)
        x = self._add(self.cross_attention_norm, x, update, training)
        return self._add(self.feed_forward_norm, x, self.feed_forward(x), training)
