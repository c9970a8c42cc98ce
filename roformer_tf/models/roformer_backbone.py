from types import SimpleNamespace

import keras
import keras_hub
from keras import ops

from roformer_tf.activations import activation_name
from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.layers import AttentionMask, EncoderBlock, Pooler, RoFormerEmbeddings
from roformer_tf.layers.cache import as_index, is_prefill
from roformer_tf.layers.feature_maps import make_feature_maps
from roformer_tf.layers.position_schemes import make_position_schemes
from roformer_tf.models.presets import arguments_of
from roformer_tf.models.roformer_model import RoFormerModel

POOLINGS = ("pooler", "cls", "mean")
# the inputs that a preprocessor makes of texts, and all that have a number for each token
TEXT_INPUTS = {"token_ids": "int32", "segment_ids": "int32", "padding_mask": "int32"}
TOKEN_INPUTS = {**TEXT_INPUTS, "position_ids": "float32", "document_ids": "int32"}


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerBackbone(RoFormerModel, keras_hub.models.Backbone):
    """RoFormer encoder: embeddings, then post-norm Transformer blocks with rotary positions.

    One class covers RoFormer (v1), RoFormer-GPT (`masking="causal"`), RoFormer-Sim
    (`masking="unilm"`, `pooler="linear"`) and RoFormer v2 (`norm="rms_norm"`, `activation="relu"`).
    With another position scheme it is one of the paper's baselines: BERT and WoBERT
    (`position_scheme="learned"`), NEZHA (`"sinusoidal_relative"`).

    A model that sees no future tokens can run a few tokens at a time, see `call_with_cache`.

    Args:
        vocabulary_size: int. Size of the vocabulary.
        num_layers: int. Number of Transformer blocks.
        num_heads: int. Number of attention heads. It must divide `hidden_dim` into heads of even
            size.
        hidden_dim: int. Size of the hidden states.
        intermediate_dim: int. Width of the feed-forward networks.
        embedding_dim: int. Size of the embeddings, `hidden_dim` by default. A smaller size makes
            factorised embeddings.
        num_segments: int. Number of segment ids; 0 for no segment embedding.
        dropout: float. Dropout rate after the embeddings, attention and feed-forward.
        attention_dropout: float. Dropout rate of the attention probabilities.
        activation: `"gelu"` (exact), `"gelu_tanh"`, `"relu"` or any Keras activation.
        norm: `"layer_norm"` (v1), or `"rms_norm"` (v2: the norms have no weights, and no layer has
            a bias).
        layer_norm_epsilon: float. 1e-12, as the original models were trained. bert4keras uses 1e-7
            from version 0.11.4 on.
        max_wavelength: float. Base of the rotary frequencies.
        position_scheme: `"rotary"`, `"learned"` (absolute), `"sinusoidal_relative"`, … or `"none"`:
            a key of `roformer_tf.layers.position_schemes.POSITION_SCHEMES`.
        position_options: dictionary. Further arguments of the position scheme's class.
        rope_scaling: dictionary in the format of Hugging Face, for texts longer than a rotary model
            was trained on, such as `{"rope_type": "linear", "factor": 4.0}`. See
            `roformer_tf.rope_scaling`.
        attention: `"softmax"`, or for linear attention the feature map that replaces the softmax:
            `"elu"`, `"softmax_features"`, `"favor"` (Performer) or `"cosine"`, a key of
            `roformer_tf.layers.feature_maps.FEATURE_MAPS`. Linear attention works with
            `position_scheme="rotary"`, with schemes that are added to the embeddings, and with
            `"none"`; not with `masking="unilm"` nor `document_ids`.
        attention_options: dictionary. Arguments of the feature map's class.
        max_sequence_length: int. Number of learned positions. Other schemes have no such bound.
        masking: `"bidirectional"`, `"causal"` or `"unilm"`. Which keys a query sees besides
            padding.
        pooler: `None`, `"tanh"` (BERT) or `"linear"` (RoFormer-Sim). Activation of a dense layer on
            the vector of `[CLS]`.
        dtype: dtype policy of all layers.
        **kwargs: Arguments of `keras.Model`, such as `name`.

    Call arguments:
        inputs: dictionary of `token_ids`, and optionally `segment_ids` (default 0), `padding_mask`
            (1 for tokens, 0 for padding; by default 0 where the id is 0), `position_ids` (whole or
            fractional) and `document_ids`; each `(batch, length)`, of any length. A token attends
            only to tokens with the same document id. So if positions start at 0 in each document,
            each document of a sequence gets the outputs that it would get alone. With
            `output_positions` `(batch, count)`, those whose hidden states are needed, the last
            feed-forward network runs at these alone, which saves up to two thirds of the last
            block. `"pooled_output"` is then that of the first of them.

    Returns:
        Hidden states `(batch, length, hidden_dim)`, or `(batch, count, hidden_dim)` with
        `output_positions`. With a pooler a dictionary of `"sequence_output"` and `"pooled_output"`
        `(batch, hidden_dim)`.

    Raises:
        ValueError: If sizes do not fit together or an option is unknown.

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

    input_dtypes = {**TOKEN_INPUTS, "output_positions": "int32"}

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
        check_sizes(sizes)
        check_one_of("pooler", pooler, ("tanh", "linear"), optional=True)
        linear = attention != "softmax"
        if linear and masking == "unilm":
            raise ValueError(
                "Linear attention has no UniLM mask. Use `masking='bidirectional'` or `'causal'`, "
                f"or `attention='softmax'`. Received: masking='unilm', attention={attention!r}"
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
        feature_maps = make_feature_maps(attention, num_layers, attention_options, dtype)
        if hasattr(feature_maps[0], "seed"):  # a loaded model redraws the same features
            attention_options = {**(attention_options or {}), "seed": feature_maps[0].seed}
        scheme_sizes = SimpleNamespace(
            **sizes,
            head_dim=feature_maps[0].rotated_dim(head_dim) if linear else head_dim,
            max_sequence_length=max_sequence_length,
            max_wavelength=max_wavelength,
            masking=masking,
            initializer=initializer_of(norm, num_layers, mode="fan_out"),
        )
        scheme_options = position_options or {}
        if rope_scaling is not None:
            if position_scheme != "rotary":
                raise ValueError(
                    "`rope_scaling` needs rotary positions. Leave it out, or use "
                    f"`position_scheme='rotary'`. Received: rope_scaling={rope_scaling!r}, "
                    f"position_scheme={position_scheme!r}"
                )
            if isinstance(scheme_options, dict):  # others are refused below
                scheme_options = {**scheme_options, "rope_scaling": rope_scaling}
        # One scheme for each block, or the same one for all.
        self.position_schemes = make_position_schemes(
            position_scheme, num_layers, scheme_sizes, scheme_options, dtype
        )
        self.position_scheme = self.position_schemes[0]
        in_input = self.position_scheme.added_to_input
        # Causal linear attention needs no mask.
        visible = "bidirectional" if linear else masking
        # Softmax attention over long inputs makes its mask itself, a chunk at a time.
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
            initializer = initializer_of(norm, num_layers)
            self.pooler = Pooler(pooler, initializer, dtype=dtype, name="pooler")

        # === Functional model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in TEXT_INPUTS}
        super().__init__(inputs, dtype=dtype, **kwargs)

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

    def compute_outputs(self, inputs, training=None):
        token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
        positions = call_position_schemes(
            self.position_schemes, token_ids, inputs.get("position_ids"), padding_mask
        )
        attention_bias = self.attention_mask(
            padding_mask, inputs["segment_ids"], inputs.get("document_ids")
        )
        in_input = self.position_scheme.added_to_input
        x = self.embeddings(
            token_ids, inputs["segment_ids"], positions[0] if in_input else None, training=training
        )
        outputs_at = inputs.get("output_positions")
        for block, position in zip(self.encoder_blocks, positions):
            x = block(
                x,
                attention_bias=attention_bias,
                position=None if in_input else position,
                output_positions=outputs_at if block is self.encoder_blocks[-1] else None,
                training=training,
            )
        if self.pooler is None:
            return x
        return {"sequence_output": x, "pooled_output": self.pooler(x)}

    @property
    def head_dim(self):
        """Size of one attention head."""
        return self.hidden_dim // self.num_heads

    @property
    def supports_cache(self):
        """Whether `call_with_cache` can run the model a few tokens at a time."""
        scheme = self.position_scheme
        if self.masking == "bidirectional" or scheme.needs_scores:
            return False
        # A sum over rotated keys cannot be rotated again.
        return self.attention == "softmax" or not scheme.depends_on_length

    def build_cache(self, batch_size, max_length):
        """Returns an empty cache for `call_with_cache`.

        Args:
            batch_size: int or scalar tensor. Number of sequences.
            max_length: int or scalar tensor. Maximum number of tokens of a sequence.

        Returns:
            Structure of tensors `(batch, ...)`.
        """
        cache = {"blocks": [b.build_cache(batch_size, max_length) for b in self.encoder_blocks]}
        if self.attention == "softmax":
            cache["mask"] = self.attention_mask.build_cache(batch_size, max_length)
        if self.position_scheme.depends_on_length:
            cache["position_ids"] = ops.zeros((batch_size, max_length), "float32")
        return cache

    def call_with_cache(self, inputs, cache, cache_update_index):
        """Runs the backbone a few tokens at a time, with a key/value cache.

        The outputs are those of the whole sequence, up to float32 rounding. Tokens may be computed
        again, except with linear attention, which adds a token as often as it comes.

        Dynamic NTK scaling and LongRoPE are the exceptions: a token keeps the keys and values of
        its own step, and keys are rotated with the scale of the current length.

        Args:
            inputs: dictionary of the tokens at positions `cache_update_index`,
                `cache_update_index + 1`, …, one or several: `token_ids` and optionally
                `segment_ids` (default 0), `padding_mask` (default 1) and `position_ids` (default
                the positions), each `(batch, length)`.
            cache: Cache returned by `build_cache`, or by the previous call.
            cache_update_index: int or scalar integer tensor. The number 0 means that there are no
                earlier tokens, which saves time and memory for a prompt.

        Returns:
            Tuple of the hidden states `(batch, length, hidden_dim)` and the new cache.

        Raises:
            ValueError: If the model does not support a cache, see `supports_cache`, or if there are
                other inputs.

        Example:

        >>> import numpy as np
        >>> import roformer_tf
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32,
        ...     masking="causal",
        ... )
        >>> ids = np.array([[2, 15, 31, 3]])
        >>> cache = backbone.build_cache(batch_size=1, max_length=8)
        >>> prompt, cache = backbone.call_with_cache({"token_ids": ids[:, :3]}, cache, 0)
        >>> last, cache = backbone.call_with_cache({"token_ids": ids[:, 3:]}, cache, 3)
        >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
        >>> bool(np.allclose(last, backbone(inputs)[:, 3:], atol=1e-5))
        True
        """
        if not self.supports_cache:
            raise ValueError(
                "This model supports no cache (`supports_cache`): run it on whole sequences. A "
                "cache needs `masking` 'causal' or 'unilm', a position scheme without scores, and "
                "no scaling by the current length ('dynamic', 'longrope') with linear attention. "
                f"Received: masking={self.masking!r}, "
                f"position_scheme={self.position_scheme_name!r}, attention={self.attention!r}, "
                f"rope_scaling={self.rope_scaling!r}"
            )
        unknown = set(inputs) - {"token_ids", "segment_ids", "padding_mask", "position_ids"}
        if unknown:
            raise ValueError(
                f"`call_with_cache` takes no {', '.join(sorted(unknown))}. "
                f"Received: {', '.join(inputs)}"
            )
        cache, cache_update_index = dict(cache), as_index(cache_update_index)
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        batch_size, length = ops.shape(token_ids)
        segment_ids = inputs.get("segment_ids", ops.zeros_like(token_ids))
        padding_mask = inputs.get("padding_mask", ops.ones_like(token_ids))
        positions = cache_update_index + ops.arange(length, dtype="int32")[None]
        position_ids = inputs.get("position_ids", positions)

        if self.attention == "softmax":
            bias, cache["mask"] = self.attention_mask.call_with_cache(
                padding_mask, cache["mask"], cache_update_index, segment_ids
            )
        else:
            bias = self.attention_mask(padding_mask)
        scheme = self.position_scheme
        if scheme.depends_on_length:
            position_ids = ops.broadcast_to(ops.cast(position_ids, "float32"), (batch_size, length))
            cache["position_ids"] = ops.slice_update(
                cache["position_ids"], (0, cache_update_index), position_ids
            )
            if not is_prefill(cache_update_index):
                position_ids = cache["position_ids"]
                padding_mask = ops.equal(cache["mask"]["bias"], 0)
        position = scheme(token_ids, position_ids, padding_mask)
        x = self.embeddings(token_ids, segment_ids, position if scheme.added_to_input else None)
        position = None if scheme.added_to_input else position
        blocks = []
        for block, block_cache in zip(self.encoder_blocks, cache["blocks"], strict=True):
            x, block_cache = block.call_with_cache(
                x, block_cache, cache_update_index, bias, position
            )
            blocks.append(block_cache)
        return x, {**cache, "blocks": blocks}

    def default_lora_layer_names(self):
        return ["qkv"]  # the joint projection to queries, keys and values

    def get_config(self):
        return {
            **super().get_config(),
            **saved_arguments(self, RoFormerBackbone),
            "pooler": self.pooler_activation,
        }


def saved_arguments(backbone, cls):
    """Returns the arguments of the constructor of `cls`, from a backbone's attributes."""
    names = [
        name for name in arguments_of(cls) if name not in ("dtype", "position_scheme", "pooler")
    ]
    values = {name: getattr(backbone, name) for name in names}
    values = {k: (dict(v) or None) if isinstance(v, dict) else v for k, v in values.items()}
    return {
        **values,
        "activation": activation_name(backbone.activation),
        "position_scheme": backbone.position_scheme_name,
    }


def check_sizes(sizes):
    """Raises `ValueError` unless all sizes are positive and the heads have an even size."""
    for name, value in sizes.items():
        check_positive_integer(name, value)
    hidden_dim, num_heads = sizes["hidden_dim"], sizes["num_heads"]
    if hidden_dim % num_heads or hidden_dim // num_heads % 2:
        raise ValueError(
            "`num_heads` must divide `hidden_dim` into heads of even size. "
            f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
        )


def call_position_schemes(schemes, token_ids, position_ids, padding_mask):
    """Calls each position scheme once, and returns its output for each block that uses it."""
    outputs = {s: s(token_ids, position_ids, padding_mask) for s in dict.fromkeys(schemes)}
    return [outputs[s] for s in schemes]


def initializer_of(norm, num_layers, mode="fan_in"):
    """Returns the original's initializer.

    v1 uses a truncated normal of 0.02, v2 one of 1 / sqrt(size * num_layers).
    """
    if norm == "rms_norm":
        return keras.initializers.VarianceScaling(1.0 / num_layers, mode, "truncated_normal")
    return keras.initializers.TruncatedNormal(stddev=0.02)


def head_dense(backbone, units, name, **options):
    """Makes the last layer of a task, in float32 under every policy, as softmax and loss need."""
    initializer = initializer_of(backbone.norm, backbone.num_layers)
    return keras.layers.Dense(
        units, kernel_initializer=initializer, dtype="float32", name=name, **options
    )


def sequence_output(backbone_outputs):
    """Returns the hidden states among a backbone's outputs, with or without a pooler."""
    if isinstance(backbone_outputs, dict):
        return backbone_outputs["sequence_output"]
    return backbone_outputs


def pooled_positions(token_ids, pooling):
    """Returns the positions that `pool` reads, `(batch, 1)` of [CLS], or `None` for all."""
    return None if pooling == "mean" else ops.zeros_like(token_ids[:, :1])


def pool(outputs, padding_mask, pooling, mean_pooling):
    """Returns the vectors `(batch, hidden_dim)` of texts, from a backbone's outputs.

    `mean_pooling` is a function of hidden states and padding mask, such as `MeanPooling`.
    """
    if pooling == "pooler":
        return outputs["pooled_output"]
    tokens = sequence_output(outputs)
    return mean_pooling(tokens, padding_mask) if pooling == "mean" else tokens[:, 0]


def check_pooling(backbone, pooling, argument="pooling"):
    """Raises `ValueError` if there is no such pooling, or the backbone lacks it."""
    check_one_of(argument, pooling, POOLINGS)
    if pooling == "pooler":
        check_pooler(backbone, f"`{argument}='pooler'`")


def check_pooler(backbone, task):
    """Raises `ValueError` if a backbone has no pooler, which makes the vector of a text."""
    if getattr(backbone, "pooler", None) is None:
        raise ValueError(
            f"{task} needs a backbone with a pooler: make it with `pooler='linear'`. "
            "Received: a backbone with pooler=None"
        )
