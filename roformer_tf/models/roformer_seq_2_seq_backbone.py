import math
from types import SimpleNamespace

import keras
import keras_hub
from keras import ops

from roformer_tf.layers import AttentionMask, DecoderBlock, Dropout, EncoderBlock, TokenEmbedding
from roformer_tf.layers.attention_mask import causal_bias
from roformer_tf.layers.position_schemes import make_position_schemes
from roformer_tf.models.roformer_backbone import (
    call_position_schemes,
    check_sizes,
    saved_arguments,
)
from roformer_tf.models.roformer_model import RoFormerModel


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSeq2SeqBackbone(RoFormerModel, keras_hub.models.Backbone):
    """Encoder-decoder Transformer with rotary positions in the self-attention of both sides.

    Everything but the positions is that of Transformer-base: its sizes, post-norm blocks, ReLU, and
    one embedding table for source, target and output, multiplied by `sqrt(hidden_dim)` where tokens
    are looked up. The paper's baseline, with sines added to the embeddings, is
    `position_scheme="sinusoidal"`. The cross-attention has no positions.

    Args:
        vocabulary_size: int. Size of the vocabulary of source and target.
        num_layers: int. Number of blocks of the encoder, and by default of the decoder.
        num_heads: int. Number of attention heads. It must divide `hidden_dim` into heads of even
            size.
        hidden_dim: int. Size of the hidden states and of the embeddings.
        intermediate_dim: int. Width of the feed-forward networks.
        num_decoder_layers: int. Number of blocks of the decoder, `num_layers` by default.
        dropout: float. Dropout rate after the embeddings, attention and feed-forward.
        attention_dropout: float. Dropout rate of the attention probabilities.
        activation: `"relu"`, `"gelu"` or any Keras activation.
        layer_norm_epsilon: float. Epsilon of the layer norms.
        max_wavelength: float. Base of the rotary frequencies.
        position_scheme: `"rotary"`, `"sinusoidal"`, … or `"none"`: a key of
            `roformer_tf.layers.position_schemes.POSITION_SCHEMES`, for the self-attention of both
            sides.
        position_options: dictionary. Further arguments of the position scheme's class.
        max_sequence_length: int. Number of learned positions. Other schemes have no such bound.
        dtype: dtype policy of all layers.
        **kwargs: Arguments of `keras.Model`, such as `name`.

    Call arguments:
        inputs: dictionary of `encoder_token_ids` `(batch, source_length)`, `decoder_token_ids`
            `(batch, length)`, and optionally `encoder_padding_mask` and `decoder_padding_mask` of
            the same shapes (1 for tokens, 0 for padding; by default 0 where the id is 0).

    Returns:
        Dictionary of `encoder_sequence_output` `(batch, source_length, hidden_dim)` and
        `decoder_sequence_output` `(batch, length, hidden_dim)`.

    Raises:
        ValueError: If sizes do not fit together or an option is unknown.

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerSeq2SeqBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> source, target = np.array([[2, 15, 31, 3]]), np.array([[2, 7, 8]])
    >>> outputs = backbone({
    ...     "encoder_token_ids": source, "encoder_padding_mask": 0 * source + 1,
    ...     "decoder_token_ids": target, "decoder_padding_mask": 0 * target + 1,
    ... })
    >>> tuple(outputs["decoder_sequence_output"].shape)
    (1, 3, 16)

    Reference: section 4.1 of arXiv 2104.09864; Vaswani et al., arXiv 1706.03762.
    """

    input_dtypes = {
        "encoder_token_ids": "int32",
        "encoder_padding_mask": "int32",
        "decoder_token_ids": "int32",
        "decoder_padding_mask": "int32",
    }

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=2048,
        num_decoder_layers=None,
        dropout=0.1,
        attention_dropout=0.0,
        activation="relu",
        layer_norm_epsilon=1e-5,
        max_wavelength=10000.0,
        position_scheme="rotary",
        position_options=None,
        max_sequence_length=512,
        dtype=None,
        **kwargs,
    ):
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        sizes = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "num_decoder_layers": num_decoder_layers,
        }
        check_sizes(sizes)

        # === Layers ===
        initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
        self.token_embedding = TokenEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=initializer,
            dtype=dtype,
            name="token_embedding",
        )
        self.embedding_scale = math.sqrt(hidden_dim)
        self.embedding_dropout = Dropout(dropout, dtype=dtype, name="embedding_dropout")

        def make_stack(side, cls, count, masking):
            scheme_sizes = SimpleNamespace(
                **sizes,
                head_dim=hidden_dim // num_heads,
                embedding_dim=hidden_dim,
                max_sequence_length=max_sequence_length,
                max_wavelength=max_wavelength,
                masking=masking,
                initializer=initializer.clone(),
            )
            schemes = make_position_schemes(
                position_scheme, count, scheme_sizes, position_options, dtype, f"{side}_"
            )
            scheme = schemes[0]
            mask = AttentionMask(masking, scheme.needs_scores, dtype=dtype, name=f"{side}_mask")
            blocks = [
                cls(
                    hidden_dim,
                    intermediate_dim,
                    num_heads,
                    dropout=dropout,
                    attention_dropout=attention_dropout,
                    activation=activation,
                    epsilon=layer_norm_epsilon,
                    position_scheme=None if scheme.added_to_input else schemes[i],
                    dtype=dtype,
                    name=f"{side}_block_{i}",
                )
                for i in range(count)
            ]
            return schemes, mask, blocks

        self.encoder_position_schemes, self.encoder_mask, self.encoder_blocks = make_stack(
            "encoder", EncoderBlock, num_layers, "bidirectional"
        )
        self.decoder_position_schemes, self.decoder_mask, self.decoder_blocks = make_stack(
            "decoder", DecoderBlock, num_decoder_layers, "causal"
        )
        self.encoder_attention_mask = AttentionMask(dtype=dtype, name="encoder_attention_mask")

        # === Functional model ===
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name) for name in self.input_dtypes
        }
        super().__init__(inputs, dtype=dtype, **kwargs)

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_decoder_layers = num_decoder_layers
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.max_wavelength = max_wavelength
        self.position_scheme_name = position_scheme
        self.position_options = position_options
        self.max_sequence_length = max_sequence_length

    def compute_outputs(self, inputs, training=None):
        source_mask = inputs["encoder_padding_mask"]
        encoder_sequence = self.encode(inputs["encoder_token_ids"], source_mask, training)
        decoder_sequence = self.decode(
            inputs["decoder_token_ids"],
            inputs["decoder_padding_mask"],
            encoder_sequence,
            source_mask,
            training,
        )
        return {
            "encoder_sequence_output": encoder_sequence,
            "decoder_sequence_output": decoder_sequence,
        }

    def encode(self, token_ids, padding_mask, training=None):
        """Runs the encoder.

        Args:
            token_ids: int tensor `(batch, source_length)`.
            padding_mask: int tensor of the same shape, 1 for tokens, 0 for padding.
            training: bool. Whether to apply dropout.

        Returns:
            `encoder_sequence`, a tensor `(batch, source_length, hidden_dim)`.
        """
        attention_bias = self.encoder_mask(padding_mask)
        x, positions = self._embed(
            token_ids, self.encoder_position_schemes, None, padding_mask, training
        )
        for block, position in zip(self.encoder_blocks, positions):
            x = block(x, attention_bias=attention_bias, position=position, training=training)
        return x

    def decode(
        self, token_ids, padding_mask, encoder_sequence, encoder_padding_mask, training=None
    ):
        """Runs the decoder on whole targets.

        Args:
            token_ids: int tensor `(batch, length)`.
            padding_mask: int tensor of the same shape, 1 for tokens, 0 for padding.
            encoder_sequence: Output of `encode`.
            encoder_padding_mask: Padding mask of the source.
            training: bool. Whether to apply dropout.

        Returns:
            Hidden states `(batch, length, hidden_dim)`.
        """
        attention_bias = self.decoder_mask(padding_mask)
        encoder_attention_bias = self.encoder_attention_mask(encoder_padding_mask)
        x, positions = self._embed(
            token_ids, self.decoder_position_schemes, None, padding_mask, training
        )
        for block, position in zip(self.decoder_blocks, positions):
            x = block(
                x,
                encoder_sequence,
                attention_bias=attention_bias,
                encoder_attention_bias=encoder_attention_bias,
                position=position,
                training=training,
            )
        return x

    @property
    def supports_cache(self):
        """Whether `call_with_cache` can run the decoder a few tokens at a time."""
        # No cache where positions need scores, or change as the text grows.
        scheme = self.decoder_position_schemes[0]
        return not (scheme.needs_scores or scheme.depends_on_length)

    def build_cache(self, batch_size, max_length):
        """Returns an empty cache of the decoder's self-attention, for `call_with_cache`.

        Args:
            batch_size: int or scalar tensor. Number of targets.
            max_length: int or scalar tensor. Maximum number of tokens of a target.

        Returns:
            List with the cache of each block of the decoder.
        """
        return [block.build_cache(batch_size, max_length) for block in self.decoder_blocks]

    def build_cross_attention_cache(self, encoder_sequence, padding_mask):
        """Returns the keys and values of the sources in each block, and the bias of their padding.

        Args:
            encoder_sequence: Output of `encode`.
            padding_mask: Padding mask of the source.
        """
        return {
            "keys_values": [
                block.cross_attention.build_cache(encoder_sequence) for block in self.decoder_blocks
            ],
            "bias": self.encoder_attention_mask(padding_mask),
        }

    def call_with_cache(self, token_ids, cache, cache_update_index, cross_attention_cache):
        """Runs the decoder a few tokens at a time, with a key/value cache.

        Args:
            token_ids: int tensor `(beams * batch, length)`, the tokens at positions
                `cache_update_index`, `cache_update_index + 1`, … of the targets. Each source has
                one target, or several in a row, such as the beams of a search.
            cache: Cache returned by `build_cache`, or by the previous call.
            cache_update_index: int or scalar integer tensor.
            cross_attention_cache: Output of `build_cross_attention_cache` for `batch` sources.

        Returns:
            Tuple of the hidden states `(beams * batch, length, hidden_dim)` and the new cache.
        """
        cache_update_index = ops.cast(cache_update_index, "int32")
        positions = cache_update_index + ops.arange(ops.shape(token_ids)[1], dtype="int32")
        positions = positions[None]
        max_length = ops.shape(keras.tree.flatten(cache)[0])[2]
        attention_bias = causal_bias(token_ids, cache_update_index, max_length)
        x, positions = self._embed(token_ids, self.decoder_position_schemes, positions, None)
        caches = []
        for block, position, block_cache, keys_values in zip(
            self.decoder_blocks, positions, cache, cross_attention_cache["keys_values"]
        ):
            x, block_cache = block.call_with_cache(
                x,
                block_cache,
                cache_update_index,
                keys_values,
                attention_bias=attention_bias,
                encoder_attention_bias=cross_attention_cache["bias"],
                position=position,
            )
            caches.append(block_cache)
        return x, caches

    def _embed(self, token_ids, schemes, position_ids, padding_mask, training=None):
        """Returns the input of the first block, and the output of each block's position scheme."""
        positions = call_position_schemes(schemes, token_ids, position_ids, padding_mask)
        x = self.token_embedding(token_ids) * self.embedding_scale
        if schemes[0].added_to_input:
            x = ops.add(x, positions[0])
            positions = [None] * len(positions)
        return self.embedding_dropout(x, training=training), positions

    def default_lora_layer_names(self):
        return ["qkv", "query", "key_value"]

    def get_config(self):
        return {**super().get_config(), **saved_arguments(self, RoFormerSeq2SeqBackbone)}
