import inspect

import keras
from keras import ops

from roformer_tf.layers.attention_mask import bias_of_masks
from roformer_tf.layers.cross_attention import CrossAttention
from roformer_tf.layers.encoder_block import EncoderBlock
from roformer_tf.layers.position_scheme import tokens_of
from roformer_tf.layers.rms_norm import make_norm


@keras.saving.register_keras_serializable(package="roformer_tf")
class DecoderBlock(EncoderBlock):
    """Post-norm block of a decoder: self-attention, attention to the encoder's output, feed-forward
    network.

    Adds `CrossAttention` between the two parts of an `EncoderBlock`. After each of the three parts
    the input is added and the sum is normalised. Only the self-attention sees positions. Called
    without `encoder_sequence`, the block has no cross-attention: a block of a GPT.

    Args:
        hidden_dim: int. Hidden size, also of `encoder_sequence`.
        intermediate_dim: Positive int.
        num_heads: int. Number of attention heads; must divide `hidden_dim`.
        **kwargs: Arguments of `EncoderBlock`. `dropout`, `attention_dropout` and
            `kernel_initializer` apply to the cross-attention too.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        encoder_sequence: Tensor `(batch, encoder_length, hidden_dim)`, the output of the encoder.
        decoder_padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Defaults to
            the mask that Keras propagates with `x`.
        decoder_attention_mask: bool tensor `(batch, query, key)`, True where a query sees a key.
        encoder_padding_mask: int or bool tensor `(batch, encoder_length)`. Defaults to the mask of
            `encoder_sequence`.
        encoder_attention_mask: bool tensor `(batch, length, encoder_length)`.
        self_attention_cache: Output of `build_cache`, or of the call before.
        self_attention_cache_update_index: int or scalar int tensor. Position of the first of these
            tokens; needed with a cache.
        cross_attention_cache: Output of the call before, which takes the place of
            `encoder_sequence`. Pass the masks of the encoder in every call.
        use_causal_mask: bool. Whether a query sees only the keys up to its own position.
        attention_bias: See `SelfAttention`. Takes the place of the decoder's masks.
        encoder_attention_bias: float32 tensor that broadcasts to `(batch, num_heads, length,
            encoder_length)`. Takes the place of the encoder's masks.
        position: Context from `position_scheme`. Defaults to that of positions 0, 1, 2, …

    The first arguments are those of `keras_hub.layers.TransformerDecoder`.

    Returns:
        Tensor `(batch, length, hidden_dim)`. With `self_attention_cache` a tuple of it, the new
        cache and, with an encoder, the `cross_attention_cache`.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import DecoderBlock
    >>> block = DecoderBlock(hidden_dim=8, intermediate_dim=16, num_heads=2, activation="relu")
    >>> x, encoder_sequence = np.ones((1, 3, 8), "float32"), np.ones((1, 5, 8), "float32")
    >>> tuple(block(x, encoder_sequence).shape)
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

    def build(self, x_shape, encoder_sequence_shape=None, *shapes, **named_shapes):
        super().build(x_shape)
        if encoder_sequence_shape is not None:
            self.cross_attention.build(x_shape, encoder_sequence_shape)
            self.cross_attention_norm.build(x_shape)

    def call(
        self,
        x,
        encoder_sequence=None,
        decoder_padding_mask=None,
        decoder_attention_mask=None,
        encoder_padding_mask=None,
        encoder_attention_mask=None,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        use_causal_mask=True,
        training=None,
        attention_bias=None,
        encoder_attention_bias=None,
        position=None,
    ):
        encoder_keys = encoder_sequence
        if encoder_keys is None and cross_attention_cache is not None:
            encoder_keys = ops.swapaxes(cross_attention_cache[0], 1, 2)
        if encoder_attention_bias is None and encoder_keys is not None:
            encoder_attention_bias = bias_of_masks(
                encoder_keys, encoder_padding_mask, encoder_attention_mask
            )
        if self_attention_cache is not None:
            if cross_attention_cache is None and encoder_sequence is not None:
                cross_attention_cache = self.cross_attention.build_cache(encoder_sequence)
            outputs = self.call_with_cache(
                x,
                self_attention_cache,
                self_attention_cache_update_index,
                cross_attention_cache,
                attention_bias,
                encoder_attention_bias,
                position,
            )
            return outputs if cross_attention_cache is None else (*outputs, cross_attention_cache)
        if attention_bias is None:
            attention_bias = bias_of_masks(
                x, decoder_padding_mask, decoder_attention_mask, use_causal_mask
            )
        if position is None:
            position = self.attention.position_scheme(
                tokens_of(x), padding_mask=decoder_padding_mask
            )
        return self._run(
            training, x, encoder_sequence, attention_bias, encoder_attention_bias, position
        )

    def call_with_cache(
        self,
        x,
        cache,
        cache_update_index,
        cross_attention_cache=None,
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
        if not self.built:
            self.build(x.shape, None if cross_attention_cache is None else x.shape)
        x = ops.cast(x, self.compute_dtype)
        update, cache = self.attention.call_with_cache(
            x, cache, cache_update_index, attention_bias=attention_bias, position=position
        )
        x = self._after_self_attention(x, update, cross_attention_cache, encoder_attention_bias)
        return x, cache

    def compute_output_spec(self, x, *args, **kwargs):
        output = super().compute_output_spec(x)
        given = inspect.signature(self.call).bind(x, *args, **kwargs).arguments
        if given.get("self_attention_cache") is None:
            return output
        outputs, memory = (output, given["self_attention_cache"]), given.get("encoder_sequence")
        if given.get("cross_attention_cache") is not None:
            outputs += (given["cross_attention_cache"],)
        elif memory is not None:
            heads = self.attention.num_heads, memory.shape[1], self.attention.head_dim
            outputs += (2 * (keras.KerasTensor((memory.shape[0], *heads), self.compute_dtype),),)
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), outputs)

    def _forward(
        self, x, encoder_sequence, attention_bias, encoder_attention_bias, position, training
    ):
        update = self.attention(
            x, attention_bias=attention_bias, position=position, training=training
        )
        cache = None
        if encoder_sequence is not None:
            cache = self.cross_attention.build_cache(encoder_sequence)
        return self._after_self_attention(x, update, cache, encoder_attention_bias, training)

    def _after_self_attention(self, x, update, cache, attention_bias, training=None):
        x = self._add(self.attention_norm, x, update, training)
        if self.cross_attention.built != (cache is not None):
            raise ValueError(
                "A block that was built with `encoder_sequence` needs it in every call, and one "
                "that was built without it takes none. Received: "
                f"encoder_sequence={'None' if cache is None else '(…)'}"
            )
        if cache is not None:
            update = self.cross_attention.call_with_cache(
                x, cache, attention_bias, training=training
            )
            x = self._add(self.cross_attention_norm, x, update, training)
        return self._add(self.feed_forward_norm, x, self.feed_forward(x), training)
