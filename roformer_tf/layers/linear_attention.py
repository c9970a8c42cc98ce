import keras
from keras import ops

from roformer_tf.layers.elu_feature_map import EluFeatureMap
from roformer_tf.layers.feature_map import no_scale
from roformer_tf.layers.linear_sums import bidirectional_sums, causal_sums, initial_state
from roformer_tf.layers.rotary_position import RotaryPosition
from roformer_tf.layers.self_attention import SelfAttention


@keras.saving.register_keras_serializable(package="roformer_tf")
class LinearAttention(SelfAttention):
    """Multi-head self-attention whose time and memory grow with the length: a feature map in place of the softmax.

    With sim(q, k) = phi(q) . phi(k), sums over the keys come out of the sum: phi(K)^T V is one matrix for all queries,
    or for causal attention one that grows from token to token. A position scheme such as RoPE turns phi(q) and phi(k)
    in the numerator only, and is made for vectors of their size: `feature_map.rotated_dim(head_dim)`. Weights may then
    be negative, and their sum is not 1; the denominator stays positive.

    **Sharp attention.** So the output is no average, and nothing bounds it. With `FavorFeatureMap`, which grows like
    the softmax, it is of the size of the values only while scores are small: with values up to 8.5 and scores of root
    mean square 4.5 outputs reach some 400, and causally some 9,000; larger scores give more than float16 holds.
    `FavorFeatureMap(rotate_inputs=True)` turns queries and keys before the map, and keeps outputs within the values.

    Weights are those of `SelfAttention`, and so are the outputs' shapes. All sums are in float32.

    Args:
        num_heads: positive integer.
        head_dim: positive integer; `num_heads * head_dim` is the width of the layer.
        feature_map: a `FeatureMap`; `EluFeatureMap()` by default.
        causal: whether a query sees only the keys up to its own place.
        chunk_size: positive integer, how many tokens of causal attention are computed at once, by a product of
            queries and keys; it changes speed and memory only.
        dropout: float, rate on the averaged values, before `output_dense`: there are no probabilities to drop.
        **kwargs: of `SelfAttention`: `use_bias`, `position_scheme`, `kernel_initializer`, and of
            `keras.layers.Layer`.

    Call arguments:
        x: tensor `(batch, length, hidden_dim)`.
        attention_bias: float32 tensor `(batch, 1, 1, length)`, 0 for keys to be seen and -1e9 for hidden ones, as
            `AttentionMask()` makes it, or `None`. A query that sees hidden keys only gets an average of these.
        position: the context made by `position_scheme`, or `None`.

    Returns:
        Tensor `(batch, length, num_heads * head_dim)`.

    Raises:
        ValueError: if the position scheme needs scores or is of another size, the feature map cannot be causal, or
            `attention_bias` differs from query to query (UniLM, packed documents).

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import EluFeatureMap, LinearAttention, RotaryPosition
    >>> feature_map = EluFeatureMap()
    >>> scheme = RotaryPosition(feature_map.rotated_dim(4))
    >>> layer = LinearAttention(2, 4, feature_map, causal=True, position_scheme=scheme)
    >>> x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    >>> whole = layer(x, position=scheme(np.zeros((1, 3), "int32")))

    Token by token, with a state that does not grow:

    >>> state = layer.build_cache(batch_size=1)
    >>> for i in range(3):
    ...     position = scheme(np.zeros((1, 1), "int32"), np.array([[i]]))
    ...     output, state = layer.call_with_cache(x[:, i : i + 1], state, i, position=position)
    >>> bool(np.allclose(output, whole[:, -1:], atol=1e-6))
    True

    Reference: equations 17 to 19 of arXiv 2104.09864.
    """

    def __init__(
        self, num_heads, head_dim, feature_map=None, causal=False, chunk_size=128, **kwargs
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        if not isinstance(chunk_size, int) or chunk_size <= 0:
            raise ValueError(
                f"`chunk_size` must be a positive integer. Received: chunk_size={chunk_size!r}"
            )
        self.feature_map = feature_map or EluFeatureMap(name="feature_map")
        self.causal = causal
        self.chunk_size = chunk_size
        self._check_position_scheme()
        if causal and self.feature_map.reads_all_keys:
            raise ValueError(
                "The features of a key must not depend on later keys in causal attention. Take "
                "`normalize_keys=False`, or another feature map. "
                f"Received: causal=True, feature_map={type(self.feature_map).__name__}"
            )

    def _check_position_scheme(self):
        scheme, size = self.position_scheme, self.feature_map.rotated_dim(self.head_dim)
        if scheme.needs_scores:
            raise ValueError(
                "Linear attention computes no scores, which this position scheme reads or changes. Take "
                "`RotaryPosition`, a scheme that is added to the embeddings, or none. "
                f"Received: position_scheme={type(scheme).__name__}"
            )
        if isinstance(scheme, RotaryPosition) and scheme.head_dim != size:
            raise ValueError(
                "`RotaryPosition` must be of the size of the vectors that it turns, "
                f"`feature_map.rotated_dim(head_dim)`={size}. Received: head_dim={scheme.head_dim}"
            )
        if isinstance(scheme, RotaryPosition) and scheme.on_values and size != self.head_dim:
            raise ValueError(
                "`RotaryPosition(on_values=True)` turns features and values alike, so there must be as many features "
                f"as values in a head. Received: {size} features, head_dim={self.head_dim}"
            )

    def build(self, x_shape, *shapes, **named_shapes):
        if not self.feature_map.built:  # one that was made from its config is
            shape = (None, self.num_heads, None, self.head_dim)
            self.feature_map.build(shape, shape)
        super().build(x_shape)

    def call(self, x, attention_bias=None, position=None, training=None):
        return self._sums(x, attention_bias, position, training=training)[0]

    def build_cache(self, batch_size, max_length=None):
        """What `step` knows before the first token: sums, which do not grow with the text.

        Args:
            batch_size: positive integer or scalar tensor.
            max_length: not read.

        Returns:
            Tuple of float32 tensors `(batch_size, num_heads, features, head_dim + 1)` and `(batch_size, num_heads)`.
        """
        return initial_state(
            batch_size, self.num_heads, self.feature_map.feature_dim(self.head_dim), self.head_dim
        )

    def call_with_cache(
        self, x, cache, cache_update_index=None, attention_bias=None, position=None
    ):
        """Causal attention of the next tokens, given what all earlier ones amount to.

        Args:
            x: tensor `(batch, length, hidden_dim)`: the next token, or several, such as a prompt.
            cache: of `build_cache`, or of the step before.
            cache_update_index: not read: each token is added to the sums once.
            attention_bias: see `call`; for these tokens.
            position: the context made by `position_scheme` for these tokens' own positions.

        Returns:
            Tuple of the outputs `(batch, length, num_heads * head_dim)` and the new cache.

        Raises:
            ValueError: if the attention is not causal.
        """
        if not self.causal:
            raise ValueError(
                "Only causal attention can go step by step. Make the layer with `causal=True`. "
                "Received: causal=False"
            )
        return self._sums(x, attention_bias, position, cache)

    def _sums(self, x, attention_bias, position, state=None, training=False):
        scheme, feature_map = self.position_scheme, self.feature_map
        query, key, value = (ops.cast(part, "float32") for part in self.split(x))
        value = scheme.apply_to_value(value, position)
        if feature_map.rotate_inputs:
            query, key = scheme.apply_to_query_key(query, key, position)
        bias = None if attention_bias is None else _bias_of_keys(attention_bias, self.causal)
        query, key, log_weight = feature_map(query, key, bias, training=training)
        features = rotated = query, key
        if not feature_map.rotate_inputs:
            rotated = self._rotate(query, key, position)
        log_weight = log_weight + (no_scale(key) if bias is None else bias)

        if self.causal:
            numerator, denominator, state = causal_sums(
                features, rotated, value, log_weight, state, self.chunk_size
            )
        else:
            numerator, denominator = bidirectional_sums(features, rotated, value, log_weight)
        output = numerator / ops.maximum(denominator, feature_map.epsilon)
        output = scheme.apply_to_output(output, None, position)
        output = self.dropout_layer(ops.cast(output, self.compute_dtype), training=training)
        return self.merge(output), state

    def _rotate(self, query, key, position):
        """Equation 19: the features as they enter the numerator."""
        still = self.feature_map.num_unrotated
        if not still:
            return self.position_scheme.apply_to_features(query, key, position)
        rotated = self.position_scheme.apply_to_features(
            query[..., still:], key[..., still:], position
        )
        return tuple(
            ops.concatenate([x[..., :still], part], axis=-1)
            for x, part in zip((query, key), rotated, strict=True)
        )

    def get_config(self):
        return {
            **super().get_config(),
            "feature_map": keras.saving.serialize_keras_object(self.feature_map),
            "causal": self.causal,
            "chunk_size": self.chunk_size,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        config["feature_map"] = keras.saving.deserialize_keras_object(config["feature_map"])
        return super().from_config(config)


def _bias_of_keys(attention_bias, causal):
    """(batch, 1, 1, key) as (batch, 1, key)."""
    if isinstance(attention_bias, dict):  # of `AttentionMask(dense=False)`
        rules = {name for name in ("order", "document") if attention_bias.get(name) is not None}
        attention_bias = attention_bias["bias"]
        fits = rules <= ({"order"} if causal else set())
        found = f"a rule by {' and '.join(sorted(rules))}"
    else:
        fits = attention_bias.shape[-2] == 1
        found = f"shape {tuple(attention_bias.shape)}"
    if fits:
        return ops.convert_to_tensor(attention_bias)[:, :, 0]
    raise ValueError(
        "Linear attention has no number for each query and key: `attention_bias` must be of shape "
        "(batch, 1, 1, length), the same for all queries, as `AttentionMask()` makes it of a padding mask. For causal "
        "attention make the layer with `causal=True`; UniLM masks and rows of several documents (`document_ids`) need "
        f"softmax attention. Received: an attention_bias of {found}"
    )
