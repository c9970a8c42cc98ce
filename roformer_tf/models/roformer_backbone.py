from types import SimpleNamespace

import keras
import keras_hub

from roformer_tf.layers import (
    AttentionMask,
    EncoderBlock,
    Pooler,
    RoFormerEmbeddings,
)
from roformer_tf.layers.feature_maps import make_feature_maps, with_seed
from roformer_tf.layers.position_schemes import make_position_schemes
from roformer_tf.models.backbone_steps import BackboneSteps
from roformer_tf.models.optional_inputs import OptionalInputs, refuse_unknown
from roformer_tf.models.presets import FromPreset
from roformer_tf.models.quantized import RestoresQuantization


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerBackbone(
    OptionalInputs,
    FromPreset,
    RestoresQuantization,
    BackboneSteps,
    keras_hub.models.Backbone,
):
    """RoFormer encoder: embeddings, then post-norm Transformer blocks with rotary position embedding.

    One class covers RoFormer (v1), RoFormer-GPT (`masking="causal"`), RoFormer-Sim (`masking="unilm"`,
    `pooler="linear"`) and RoFormer v2 (`norm="rms_norm"`, `activation="relu"`). With another position scheme it is one
    of the paper's baselines: BERT and WoBERT (`position_scheme="learned"`), NEZHA (`"sinusoidal_relative"`).

    What sees no future can be computed token by token, see `step`.

    Args:
        vocabulary_size: positive integer.
        num_layers: positive integer, number of blocks.
        num_heads: positive integer that divides `hidden_dim` into heads of even size.
        hidden_dim: positive integer.
        intermediate_dim: positive integer, width of the feed-forward networks.
        embedding_dim: positive integer, `hidden_dim` by default; smaller for factorised embeddings.
        num_segments: number of segment ids; 0 for no segment embedding.
        dropout: float, after the embeddings, attention and feed-forward.
        attention_dropout: float, on attention probabilities.
        activation: `"gelu"` (exact), `"gelu_tanh"`, `"relu"` or any Keras activation.
        norm: `"layer_norm"` (v1), or `"rms_norm"` (v2: no weights in the norms, no biases anywhere).
        layer_norm_epsilon: float. 1e-12 as the original models were made; bert4keras has 1e-7 from version 0.11.4 on.
        max_wavelength: float, base of the rotary frequencies.
        position_scheme: `"rotary"`, `"learned"` (absolute), `"sinusoidal_relative"`, … or `"none"`: a key of
            `roformer_tf.layers.position_schemes.POSITION_SCHEMES`.
        position_options: dictionary, further arguments of the scheme's class.
        rope_scaling: dictionary in Hugging Face's words, for texts longer than a rotary model was trained on, such as
            `{"rope_type": "linear", "factor": 4.0}`; see `roformer_tf.rope_scaling`.
        attention: `"softmax"`, or for linear attention the name of what it has in place of the softmax: `"elu"`,
            `"softmax_features"`, `"favor"` (the Performer's) or `"cosine"`: a key of
            `roformer_tf.layers.feature_maps.FEATURE_MAPS`. It goes with `position_scheme="rotary"`, with those that are
            added to the embeddings, and with `"none"`; not with `masking="unilm"`, nor with `document_ids`.
        attention_options: dictionary, arguments of the feature map's class.
        max_sequence_length: positive integer, number of learned positions; no other scheme has such a bound.
        masking: which keys a query sees besides padding: `"bidirectional"`, `"causal"` or `"unilm"`.
        pooler: `None`, `"tanh"` (BERT) or `"linear"` (RoFormer-Sim): activation of a dense layer on [CLS].
        dtype: dtype policy of all layers.
        **kwargs: of `keras.Model`, such as `name`.

    Call arguments:
        inputs: dictionary of `token_ids`, `segment_ids`, `padding_mask` (1 real, 0 padding) and, optionally,
            `position_ids` (whole or fractional) and `document_ids`; each `(batch, length)`, of any length. A token sees
            those with the same document id only; with positions that begin again at 0 in each document, a row of
            several documents gives each the outputs that it has alone.

    Returns:
        Hidden states `(batch, length, hidden_dim)`; with a pooler a dictionary of `"sequence_output"` and
        `"pooled_output"` `(batch, hidden_dim)`.

    Raises:
        ValueError: if sizes do not fit each other or an option is unknown.

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> ids = np.array([[2, 15, 31, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> tuple(backbone(inputs).shape)
    (1, 4, 16)

    Reference: arXiv 2104.09864; `RoFormer` and `RoFormerV2` of bert4keras' `models.py`.
    """

    optional_inputs = ("position_ids", "document_ids")

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        embedding_dim=None,
        num_segments=2,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        norm="layer_norm",
        layer_norm_epsilon=1e-12,
        max_wavelength=10000.0,
        position_scheme="rotary",
        position_options=None,
        rope_scaling=None,
        attention="softmax",
        attention_options=None,
        max_sequence_length=512,
        masking="bidirectional",
        pooler=None,
        dtype=None,
        **kwargs,
    ):
        sizes = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "embedding_dim": hidden_dim if embedding_dim is None else embedding_dim,
        }
        for name, value in sizes.items():
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
        if hidden_dim % num_heads or hidden_dim // num_heads % 2:
            raise ValueError(
                "`num_heads` must divide `hidden_dim` into heads of even size. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
        refuse_unknown(type(self), kwargs, {"name", "trainable"})
        if pooler not in (None, "tanh", "linear"):
            raise ValueError(
                f"`pooler` must be None, 'tanh' or 'linear'. Received: pooler={pooler!r}"
            )
        linear = attention != "softmax"
        if linear and masking == "unilm":
            raise ValueError(
                "Linear attention has no UniLM mask. Take `masking='bidirectional'` or `'causal'`, or "
                f"`attention='softmax'`. Received: masking='unilm', attention={attention!r}"
            )

        head_dim = hidden_dim // num_heads
        use_bias = norm == "layer_norm"
        common = {"norm": norm, "epsilon": layer_norm_epsilon, "use_bias": use_bias}
        # === Layers ===
        self.embeddings = RoFormerEmbeddings(
            vocabulary_size,
            sizes["embedding_dim"],
            hidden_dim,
            num_segments=num_segments,
            dropout=dropout,
            embeddings_initializer=initializer_of(norm, num_layers, mode="fan_out"),
            kernel_initializer=initializer_of(norm, num_layers),
            dtype=dtype,
            name="embeddings",
            **common,
        )
        self.token_embedding = self.embeddings.token_embedding
        attention_options = with_seed(attention, attention_options)
        feature_maps = make_feature_maps(attention, num_layers, attention_options, dtype)
        scheme_sizes = SimpleNamespace(
            head_dim=feature_maps[0].rotated_dim(head_dim) if linear else head_dim,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            embedding_dim=sizes["embedding_dim"],
            max_sequence_length=max_sequence_length,
            max_wavelength=max_wavelength,
            masking=masking,
            initializer=initializer_of(norm, num_layers, mode="fan_out"),
        )
        scheme_options = dict(position_options or {})
        if rope_scaling is not None:
            if position_scheme != "rotary":
                raise ValueError(
                    "`rope_scaling` is of rotary positions: leave it out, or take `position_scheme='rotary'`. "
                    f"Received: rope_scaling={rope_scaling!r}, position_scheme={position_scheme!r}"
                )
            scheme_options["rope_scaling"] = rope_scaling
        # one for each block, or the same for all
        self.position_schemes = make_position_schemes(
            position_scheme, num_layers, scheme_sizes, scheme_options, dtype
        )
        self.position_scheme = self.position_schemes[0]
        in_input = self.position_scheme.added_to_input
        # causal linear attention needs no mask
        visible = "bidirectional" if linear else masking
        # softmax attention of long inputs makes its mask itself, a block at a time
        dense = linear or self.position_scheme.needs_scores
        self.attention_mask = AttentionMask(visible, dense, dtype=dtype, name="attention_mask")
        self.encoder_blocks = [
            EncoderBlock(
                hidden_dim,
                intermediate_dim,
                num_heads,
                dropout=dropout,
                attention_dropout=attention_dropout,
                activation=activation,
                position_scheme=None if in_input else self.position_schemes[i],
                feature_map=feature_maps[i],
                causal=masking == "causal",
                kernel_initializer=initializer_of(norm, num_layers),
                dtype=dtype,
                name=f"encoder_block_{i}",
                **common,
            )
            for i in range(num_layers)
        ]
        self.pooler = None
        if pooler:
            self.pooler = Pooler(
                pooler, initializer_of(norm, num_layers), dtype=dtype, name="pooler"
            )

        # === Functional model ===
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "segment_ids": keras.Input((None,), dtype="int32", name="segment_ids"),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
            "position_ids": keras.Input(
                (None,), dtype="float32", name="position_ids", optional=True
            ),
            "document_ids": keras.Input((None,), dtype="int32", name="document_ids", optional=True),
        }
        contexts = {
            id(scheme): scheme(inputs["token_ids"], inputs["position_ids"], inputs["padding_mask"])
            for scheme in {id(scheme): scheme for scheme in self.position_schemes}.values()
        }
        positions = [contexts[id(scheme)] for scheme in self.position_schemes]
        attention_bias = self.attention_mask(
            inputs["padding_mask"], inputs["segment_ids"], inputs["document_ids"]
        )
        x = self.embeddings(
            inputs["token_ids"], inputs["segment_ids"], positions[0] if in_input else None
        )
        for block, position in zip(self.encoder_blocks, positions):
            x = block(x, attention_bias=attention_bias, position=None if in_input else position)
        outputs = x
        if self.pooler is not None:
            outputs = {"sequence_output": x, "pooled_output": self.pooler(x)}
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = sizes["embedding_dim"]
        self.num_segments = num_segments
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.norm = norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.max_wavelength = max_wavelength
        self.position_scheme_name = position_scheme
        self.position_options = position_options
        self.rope_scaling = rope_scaling
        self.attention = attention
        self.attention_options = attention_options
        self.max_sequence_length = max_sequence_length
        self.masking = masking
        self.pooler_activation = pooler

    @property
    def head_dim(self):
        """Size of one attention head."""
        return self.hidden_dim // self.num_heads

    def default_lora_layer_names(self):
        """Names of the layers that `enable_lora` adapts by default: the fused query, key and value projection."""
        return ["qkv"]

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "embedding_dim": self.embedding_dim,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "norm": self.norm,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "max_wavelength": self.max_wavelength,
            "position_scheme": self.position_scheme_name,
            "position_options": dict(self.position_options) if self.position_options else None,
            "rope_scaling": dict(self.rope_scaling) if self.rope_scaling else None,
            "attention": self.attention,
            "attention_options": dict(self.attention_options) if self.attention_options else None,
            "max_sequence_length": self.max_sequence_length,
            "masking": self.masking,
            "pooler": self.pooler_activation,
        }


def initializer_of(norm, num_layers, mode="fan_in"):
    """How the original initialises: truncated normal of 0.02 (v1), or of 1 / sqrt(size * num_layers) (v2)."""
    if norm == "rms_norm":
        return keras.initializers.VarianceScaling(1.0 / num_layers, mode, "truncated_normal")
    return keras.initializers.TruncatedNormal(stddev=0.02)


def sequence_output(backbone_outputs):
    """The hidden states among the outputs of a backbone, with or without a pooler."""
    if isinstance(backbone_outputs, dict):
        return backbone_outputs["sequence_output"]
    return backbone_outputs
