from functools import partial

import keras
from keras import ops

from roformer_tf.activations import activation_name
from roformer_tf.layers.attention_mask import bias_of_masks, tokens_at, with_mask_at
from roformer_tf.layers.config import arguments_of, deserialize_parts, shape_of_spec
from roformer_tf.layers.dropout import Dropout
from roformer_tf.layers.feature_map import check_no_scores
from roformer_tf.layers.feed_forward import FeedForward
from roformer_tf.layers.linear_attention import LinearAttention
from roformer_tf.layers.position_scheme import tokens_of
from roformer_tf.layers.rms_norm import make_norm
from roformer_tf.layers.self_attention import SelfAttention


@keras.saving.register_keras_serializable(package="roformer_tf")
class EncoderBlock(keras.layers.Layer):
    """Post-norm Transformer block: attention, add, norm, feed-forward, add, norm.

    Args:
        hidden_dim: Positive int.
        intermediate_dim: Positive int.
        num_heads: int. Number of attention heads; must divide `hidden_dim`.
        dropout: float. On the outputs of attention and feed-forward network.
        attention_dropout: float. See `dropout` of `SelfAttention` and `LinearAttention`.
        activation: Name as in `get_activation`.
        norm: `"layer_norm"` (v1) or `"rms_norm"` (v2).
        epsilon: float. Of the norms.
        use_bias: bool. Whether dense layers have biases (v1 yes, v2 no).
        position_scheme: a `PositionScheme`, or `None`.
        feature_map: a `FeatureMap` for linear attention, or `None` for softmax attention.
        causal: bool. Whether a query sees only the keys up to its own position. Softmax attention
            follows `attention_bias` instead if that is given.
        kernel_initializer: Initializer of all kernels.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Defaults to the mask
            that Keras propagates with `x`.
        attention_mask: bool tensor `(batch, query, key)`, True where a query sees a key.
        return_attention_scores: bool. Whether to return the attention probabilities too.
        attention_bias: See `SelfAttention`. Takes the place of the masks and of `causal`.
        position: Context from `position_scheme`. Defaults to that of positions 0, 1, 2, …
        output_positions: int tensor `(batch, count)`, or `None` for all. The positions to return.
            The feed-forward network runs at these alone. `SelfAttention` says what it leaves out.

    The first arguments are those of `keras_hub.layers.TransformerEncoder`. A model with many blocks
    computes `attention_bias` and `position` once and passes them to each.

    Returns:
        Tensor `(batch, length, hidden_dim)`, or `(batch, count, hidden_dim)` with
        `output_positions`. With `return_attention_scores` a tuple of it and the probabilities
        `(batch, num_heads, query, key)`.

    Attributes:
        recompute_activations: bool. Whether training keeps only the input of the block and computes
            the rest again for the gradient (`recompute`). Run such a step in `dropout_seeds`.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, or if scores are asked of linear
            attention, which has none.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import EncoderBlock, RotaryPosition
    >>> block = EncoderBlock(8, 16, num_heads=2, position_scheme=RotaryPosition(4))
    >>> x = np.ones((1, 5, 8), "float32")
    >>> tuple(block(x, padding_mask=np.array([[1, 1, 1, 0, 0]])).shape)
    (1, 5, 8)

    Token by token, a causal block:

    >>> block = EncoderBlock(8, 16, num_heads=2, position_scheme=RotaryPosition(4), causal=True)
    >>> output, cache = block.call_with_cache(x, block.build_cache(batch_size=1, max_length=9), 0)
    >>> bool(np.allclose(output, block(x), atol=1e-6))
    True

    Reference: `RoFormer.apply_main_layers` of bert4keras' `models.py`.
    """

    recompute_activations = False

    def __init__(
        self,
        hidden_dim,
        intermediate_dim,
        num_heads,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu",
        norm="layer_norm",
        epsilon=1e-12,
        use_bias=True,
        position_scheme=None,
        feature_map=None,
        causal=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # as in `Attention`
        self.supports_masking = True
        if hidden_dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `hidden_dim`. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_name = activation_name(activation)
        self.norm_kind = norm
        self.epsilon = epsilon
        self.use_bias = use_bias
        self.position_scheme = position_scheme
        self.causal = causal
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        dtype = self.dtype_policy
        attention = SelfAttention
        if feature_map is not None:
            attention = partial(LinearAttention, feature_map=feature_map, causal=causal)
        self.attention = attention(
            num_heads,
            hidden_dim // num_heads,
            dropout=attention_dropout,
            use_bias=use_bias,
            position_scheme=position_scheme,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=dtype,
            name="attention",
        )
        self.attention_norm = make_norm(norm, epsilon, dtype=dtype, name="attention_norm")
        self.feed_forward = FeedForward(
            hidden_dim,
            intermediate_dim,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=dtype,
            name="feed_forward",
        )
        self.feed_forward_norm = make_norm(norm, epsilon, dtype=dtype, name="feed_forward_norm")
        self.dropout_layer = Dropout(dropout, dtype=dtype, name="dropout")

    @property
    def feature_map(self):
        """The feature map of linear attention, or `None`."""
        return getattr(self.attention, "feature_map", None)

    def build(self, x_shape, *shapes, **named_shapes):
        self.attention.build(x_shape)
        self.attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        attention_bias=None,
        position=None,
        output_positions=None,
    ):
        if attention_bias is None:
            attention_bias = bias_of_masks(x, padding_mask, attention_mask, self.causal)
        if position is None:
            position = self.attention.position_scheme(tokens_of(x), padding_mask=padding_mask)
        check_no_scores(return_attention_scores, self.feature_map)
        if return_attention_scores:
            features = ops.cast(x, self.compute_dtype)
            update, scores = self.attention(
                features,
                attention_bias,
                position,
                return_attention_scores=True,
                training=training,
                output_positions=output_positions,
            )
            features = tokens_at(features, output_positions)
            output = self._after_attention(features, update, training)
            return with_mask_at(output, x, output_positions), scores
        output = self._run(training, x, attention_bias, position, output_positions)
        return with_mask_at(output, x, output_positions)

    def _run(self, training, x, *args):
        """Calls `_forward`, and recomputes its activations for the gradient if asked to."""
        function, x = partial(self._forward, training=training), ops.cast(x, self.compute_dtype)
        if not (self.recompute_activations and training):
            return function(x, *args)
        redraw_every = getattr(self.feature_map, "redraw_every", None)
        if redraw_every:
            raise ValueError(
                "`redraw_every` counts forward passes, and a training step with recomputed "
                "activations has two. Create the feature map without it, and call `redraw` "
                f"between the steps. Received: redraw_every={redraw_every}"
            )
        return recompute(function, x, *args)

    def _forward(self, x, attention_bias, position, output_positions, training):
        update = self.attention(
            x,
            attention_bias=attention_bias,
            position=position,
            training=training,
            output_positions=output_positions,
        )
        return self._after_attention(tokens_at(x, output_positions), update, training)

    def build_cache(self, batch_size, max_length):
        """Creates an empty cache; see the `build_cache` of the attention layer."""
        return self.attention.build_cache(batch_size, max_length)

    def call_with_cache(self, x, cache, cache_update_index, attention_bias=None, position=None):
        """Computes the next tokens with a cache of the earlier ones.

        Takes the arguments of `SelfAttention.call_with_cache`. Returns the outputs
        `(batch, length, hidden_dim)` and the new cache.
        """
        if not self.built:
            self.build(x.shape)
        x = ops.cast(x, self.compute_dtype)
        update, cache = self.attention.call_with_cache(
            x, cache, cache_update_index, attention_bias, position
        )
        return self._after_attention(x, update), cache

    def _after_attention(self, x, update, training=None):
        x = self._add(self.attention_norm, x, update, training)
        return self._add(self.feed_forward_norm, x, self.feed_forward(x), training)

    def _add(self, norm, x, update, training):
        return norm(x + self.dropout_layer(update, training=training))

    def compute_output_spec(
        self, x, *args, return_attention_scores=False, output_positions=None, **kwargs
    ):
        length = x.shape[1] if output_positions is None else output_positions.shape[1]
        output = keras.KerasTensor((x.shape[0], length, x.shape[2]), self.compute_dtype)
        output = with_mask_at(output, x, output_positions)
        if not return_attention_scores:
            return output
        shape = (x.shape[0], self.num_heads, x.shape[1], x.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    compute_output_shape = shape_of_spec

    def get_config(self):
        arguments = arguments_of(
            self, EncoderBlock, activation=self.activation_name, norm=self.norm_kind
        )
        return {**super().get_config(), **arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))


def recompute(function, *args):
    """Calls `function` without keeping its activations; the backward pass computes them again.

    Saves most of the memory of the activations for about a third more time. `function` must draw
    the same random numbers both times; see `Dropout.fixed_seed`. Backends other than TensorFlow
    keep the activations.

    Args:
        function: Takes `args` and returns one tensor; may use the weights of layers.
        *args: structures of tensors and `None`.

    Returns:
        What `function(*args)` returns, with its gradients.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import recompute
    >>> float(recompute(lambda x: x * x, np.float32(3.0)))
    9.0

    Reference: Chen et al., Training deep nets with sublinear memory cost, arXiv 1604.06174.
    """
    if keras.config.backend() != "tensorflow":
        return function(*args)
    import tensorflow as tf

    def has_gradient(x):
        # others, such as positions, are constants of `run`: TensorFlow warns of integer gradients
        return x is not None and tf.as_dtype(x.dtype).is_floating

    tensors = [x for x in keras.tree.flatten(args) if has_gradient(x)]

    def run(*tensors):
        tensors = iter(tensors)
        inputs = keras.tree.map_structure(
            lambda x: next(tensors) if has_gradient(x) else x, args, none_is_leaf=True
        )
        return function(*inputs)

    return tf.recompute_grad(run)(*tensors)
