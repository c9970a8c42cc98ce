import math

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.attention_mask import bias_of_masks, tokens_at, with_mask_at
from roformer_tf.layers.cache import as_index
from roformer_tf.layers.chunked_attention import in_chunks, out_of_chunks
from roformer_tf.layers.elu_feature_map import EluFeatureMap
from roformer_tf.layers.feature_map import largest_of, no_scale
from roformer_tf.layers.position_scheme import tokens_of
from roformer_tf.layers.rotary_position import RotaryPosition
from roformer_tf.layers.self_attention import SelfAttention

# The logarithm of 0. Finite, so that the difference of two of them is a number.
_NEVER = -1e30
# Up to this many terms are summed by one matrix product; its work grows with their square.
_FEW = 32


@keras.saving.register_keras_serializable(package="roformer_tf")
class LinearAttention(SelfAttention):
    """Multi-head self-attention in linear time and memory, with a feature map instead of softmax.

    With sim(q, k) = phi(q) . phi(k), all queries share one matrix phi(K)^T V. In causal attention
    this matrix accumulates from token to token. A position scheme such as RoPE rotates phi(q) and
    phi(k) in the numerator only, so create it with `feature_map.rotated_dim(head_dim)`. Weights
    may then be negative and need not sum to 1. The denominator stays positive.

    **Sharp attention.** The output is therefore not an average, and has no bound. With
    `FavorFeatureMap`, which grows like the softmax, outputs are as large as the values only while
    scores are small: with values up to 8.5 and scores of root mean square 4.5, outputs reach about
    400, or 9,000 if causal. Larger scores overflow float16.
    `FavorFeatureMap(rotate_inputs=True)` rotates queries and keys before the map and keeps outputs
    within the values.

    Weights and output shapes are those of `SelfAttention`. All sums are in float32.

    Args:
        num_heads: int. Number of attention heads.
        head_dim: int. Size of each head. The layer is `num_heads * head_dim` wide.
        feature_map: `FeatureMap`. Defaults to `EluFeatureMap()`.
        causal: bool. Whether a query sees only the keys up to its own position.
        chunk_size: int. Number of tokens of causal attention computed at once, by a product of
            queries and keys. Affects only speed and memory.
        dropout: float. Dropout rate of the averaged values before `output_dense`, as there are no
            probabilities to drop.
        **kwargs: Arguments of `SelfAttention`: `use_bias`, `position_scheme`, `kernel_initializer`,
            and of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        attention_bias: float32 tensor `(batch, 1, 1, length)`, 0 for visible keys and -1e9 for
            hidden ones, from `AttentionMask()`. Takes the place of the masks below. A query whose
            keys are all hidden averages the hidden keys.
        position: Context from `position_scheme`. Defaults to that of positions 0, 1, 2, …
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Defaults to the mask
            that Keras propagates with `x`.
        attention_mask: Must be `None`: linear attention has no mask that differs by query.
        output_positions: See `SelfAttention`.

    Returns:
        Tensor `(batch, length, num_heads * head_dim)`, or `(batch, count, num_heads * head_dim)`
        with `output_positions`.

    Raises:
        ValueError: If the position scheme needs scores or has the wrong size, the feature map
            cannot be causal, or `attention_bias` differs by query (UniLM, packed documents).

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import EluFeatureMap, LinearAttention, RotaryPosition
    >>> feature_map = EluFeatureMap()
    >>> scheme = RotaryPosition(feature_map.rotated_dim(4))
    >>> layer = LinearAttention(2, 4, feature_map, causal=True, position_scheme=scheme)
    >>> x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    >>> whole = layer(x)

    Token by token, with a state that does not grow:

    >>> state = layer.build_cache(batch_size=1)
    >>> for i in range(3):
    ...     output, state = layer.call_with_cache(x[:, i : i + 1], state, i)
    >>> bool(np.allclose(output, whole[:, -1:], atol=1e-6))
    True

    Reference: equations 17 to 19 of arXiv 2104.09864.
    """

    def __init__(
        self, num_heads, head_dim, feature_map=None, causal=False, chunk_size=128, **kwargs
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        check_positive_integer("chunk_size", chunk_size)
        self.feature_map = feature_map or EluFeatureMap(name="feature_map")
        self.causal = causal
        self.chunk_size = chunk_size
        scheme, size = self.position_scheme, self.feature_map.rotated_dim(head_dim)
        if scheme.needs_scores:
            raise ValueError(
                "Linear attention computes no scores, and this position scheme needs them. Use "
                "`RotaryPosition`, a scheme that is added to the embeddings, or none. "
                f"Received: position_scheme={type(scheme).__name__}"
            )
        if isinstance(scheme, RotaryPosition) and scheme.head_dim != size:
            raise ValueError(
                "`RotaryPosition` must have the size of the vectors that it rotates: "
                f"`feature_map.rotated_dim(head_dim)`={size}. Received: head_dim={scheme.head_dim}"
            )
        if isinstance(scheme, RotaryPosition) and scheme.on_values and size != head_dim:
            raise ValueError(
                "`RotaryPosition(on_values=True)` rotates features and values alike, so a head "
                f"must have as many features as values. Received: {size} features, "
                f"head_dim={head_dim}"
            )
        if causal and self.feature_map.reads_all_keys:
            raise ValueError(
                "In causal attention the features of a key must not depend on later keys. Use "
                "`normalize_keys=False`, or another feature map. "
                f"Received: causal=True, feature_map={type(self.feature_map).__name__}"
            )

    def build(self, x_shape, *shapes, **named_shapes):
        if not self.feature_map.built:  # a deserialized one is
            shape = (None, self.num_heads, None, self.head_dim)
            self.feature_map.build(shape, shape)
        super().build(x_shape)

    def call(
        self,
        x,
        attention_bias=None,
        position=None,
        padding_mask=None,
        attention_mask=None,
        training=None,
        output_positions=None,
    ):
        if attention_bias is None:
            attention_bias = bias_of_masks(x, padding_mask, attention_mask)
        if position is None:
            position = self.position_scheme(tokens_of(x), padding_mask=padding_mask)
        output, _ = self._sums(x, attention_bias, position, training=training)
        return with_mask_at(tokens_at(output, output_positions), x, output_positions)

    def build_cache(self, batch_size, max_length=None):
        """Creates a cache of sums. Its size does not depend on the length.

        Args:
            batch_size: int or scalar tensor.
            max_length: Unused.

        Returns:
            Tuple of float32 tensors `(batch_size, num_heads, features, head_dim + 1)` and
            `(batch_size, num_heads)`.
        """
        return initial_state(
            batch_size, self.num_heads, self.feature_map.feature_dim(self.head_dim), self.head_dim
        )

    def call_with_cache(
        self, x, cache, cache_update_index=None, attention_bias=None, position=None
    ):
        """Computes causal attention for the next tokens with the sums of the earlier ones.

        Args:
            x: Tensor `(batch, length, hidden_dim)`. One or more tokens, such as a prompt.
            cache: Output of `build_cache`, or of the call before.
            cache_update_index: int or scalar int tensor. Position of the first of these tokens.
                Unused if `position` is given, as each token is added to the sums once.
            attention_bias: See `call`. For these tokens.
            position: Context from `position_scheme` for these tokens' positions.

        Returns:
            Tuple of the outputs `(batch, length, num_heads * head_dim)` and the new cache.

        Raises:
            ValueError: If the attention is not causal.
        """
        if not self.causal:
            raise ValueError(
                "Only causal attention supports a cache. Create the layer with `causal=True`. "
                "Received: causal=False"
            )
        if not self.built:
            self.build(x.shape)
        if position is None and cache_update_index is not None:
            positions = as_index(cache_update_index) + ops.arange(ops.shape(x)[1], dtype="int32")
            position = self.position_scheme(tokens_of(x), position_ids=positions[None])
        return self._sums(x, attention_bias, position, cache)

    def _sums(self, x, attention_bias, position, state=None, training=False):
        scheme, before = self.position_scheme, self.feature_map.rotate_inputs
        shape = ops.shape(x)[:2]
        query, key, value = (ops.cast(part, "float32") for part in self.split(x, shape))
        rotate = scheme.apply_to_query_key if before else scheme.apply_to_features
        output, state = linear_attention(
            query,
            key,
            scheme.apply_to_value(value, position),
            self.feature_map,
            lambda query, key: rotate(query, key, position),
            key_bias=None if attention_bias is None else _bias_of_keys(attention_bias, self.causal),
            causal=self.causal,
            state=state,
            chunk_size=self.chunk_size,
            training=training,
        )
        output = scheme.apply_to_output(output, None, position)
        output = self.dropout_layer(ops.cast(output, self.compute_dtype), training=training)
        return self.merge(output, shape), state


def _bias_of_keys(attention_bias, causal):
    """Reshapes the bias from (batch, 1, 1, key) to (batch, 1, key)."""
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
        "`attention_bias` of linear attention must be the same for all queries, of shape "
        "(batch, 1, 1, length): pass `AttentionMask()` of a padding mask. For causal attention "
        "create the layer with `causal=True`. UniLM masks and packed documents (`document_ids`) "
        f"need softmax attention. Received: an attention_bias of {found}"
    )


def linear_attention(
    query,
    key,
    value,
    feature_map,
    rotate,
    key_bias=None,
    causal=False,
    state=None,
    chunk_size=128,
    training=False,
):
    """Computes equation 19: averages of values, weighted by feature maps of queries and keys.

    Args:
        query, key: float32 tensors `(batch, num_heads, length, head_dim)`.
        value: float32 tensor `(batch, num_heads, length, value_dim)`.
        feature_map: `FeatureMap`.
        rotate: Function of a query and a key, or of their features, that rotates both.
        key_bias: float32 tensor `(batch, 1, length)`, 0 for visible keys, -1e9 for hidden ones.
        causal: bool. Whether a query sees only the keys up to its own position.
        state, chunk_size: See `causal_sums`.
        training: bool.

    Returns:
        The averages, of the shape of `value`, and the state of `causal_sums`.
    """
    if feature_map.rotate_inputs:
        query, key = rotate(query, key)
    query, key, log_weight = feature_map(query, key, key_bias, training=training)
    features = rotated = query, key
    if not feature_map.rotate_inputs:
        still = feature_map.num_unrotated
        rotated = rotate(query[..., still:], key[..., still:])
        if still:
            rotated = tuple(
                ops.concatenate([x[..., :still], part], axis=-1)
                for x, part in zip(features, rotated, strict=True)
            )
    log_weight = log_weight + (no_scale(key) if key_bias is None else key_bias)
    if causal:
        numerator, denominator, state = causal_sums(
            features, rotated, value, log_weight, state, chunk_size
        )
    else:
        numerator, denominator = bidirectional_sums(features, rotated, value, log_weight)
    return numerator / ops.maximum(denominator, feature_map.epsilon), state


# Linear attention keeps no number for each query and key. For query i it sums over the visible keys
# j:
#
#     numerator_i   = sum_j exp(log_weight_j) (rotated_query_i . rotated_key_j) value_j
#     denominator_i = sum_j exp(log_weight_j) (query_i . key_j)
#
# Both are divided by the largest visible `exp(log_weight_j)`, so nothing overflows or vanishes.
# Reference: equations 18 and 19 of arXiv 2104.09864; Katharopoulos et al., arXiv 2006.16236,
# section 3.


def bidirectional_sums(features, rotated, value, log_weight):
    """Computes numerators and denominators where every query sees every key.

    Args:
        features: Tuple of the features of queries and keys, `(batch, num_heads, length, features)`
            each, for the denominator.
        rotated: The same features rotated by their positions, for the numerator.
        value: Tensor `(batch, num_heads, length, head_dim)`.
        log_weight: Tensor that broadcasts to `(batch, num_heads, length)`.

    Returns:
        Numerators `(batch, num_heads, length, head_dim)` and denominators `(batch, num_heads,
        length, 1)`.
    """
    (query, key), (rotated_query, rotated_key) = features, rotated
    largest = largest_of(log_weight, axis=-1, keepdims=True)
    weight = ops.expand_dims(ops.exp(log_weight - largest), -1)
    sums = ops.matmul(ops.swapaxes(rotated_key, -1, -2), value * weight)
    normalizer = ops.expand_dims(ops.sum(key * weight, axis=-2), -1)
    return ops.matmul(rotated_query, sums), ops.matmul(query, normalizer)


def initial_state(batch, num_heads, num_features, head_dim):
    """Returns the state of `causal_sums` before the first token."""
    sums = ops.zeros((batch, num_heads, num_features, head_dim + 1), "float32")
    return sums, ops.full((batch, num_heads), _NEVER, "float32")


def causal_sums(features, rotated, value, log_weight, state=None, chunk_size=128):
    """Computes numerators and denominators where a query sees the keys up to its own position.

    Within a chunk, the product of queries and keys is masked; what all earlier chunks amount to is
    one matrix, `features x head_dim`, for each chunk. Every sum is relative to the largest weight
    *so far*, so later tokens have no influence, not even by rounding.

    Args:
        features, rotated, value, log_weight: See `bidirectional_sums`.
        state: The state that the call for the earlier tokens returned, or `None`.
        chunk_size: int. Affects only speed and memory.

    Returns:
        Numerators, denominators, and the state after these tokens: a tuple of `(batch, num_heads,
        features, head_dim + 1)`, the sums of the numerator and in the last column those of the
        denominator, and `(batch, num_heads)`, the logarithm of the weight they are relative to.
    """
    batch, num_heads, length, head_dim = ops.shape(value)
    if isinstance(length, int):
        chunk_size = max(1, min(chunk_size, length))
    if state is None:
        sums, scale = initial_state(batch, num_heads, features[0].shape[-1], head_dim)
        scale = scale[:1, :1]  # the same for all heads
    else:
        sums, scale = state

    # from here on (batch, head, chunk, position in the chunk, ...)
    query, key = (in_chunks(x, chunk_size) for x in features)
    same = rotated[0] is features[0]
    rotated_query, rotated_key = (
        (query, key) if same else (in_chunks(x, chunk_size) for x in rotated)
    )
    value = in_chunks(value, chunk_size)
    log_weight = in_chunks(log_weight, chunk_size, fill=_NEVER)
    largest = ops.maximum(_running_max(log_weight), ops.expand_dims(scale, (-2, -1)))
    ends = largest[..., -1]

    # within each chunk
    decay = _decay(log_weight, largest)
    scores = ops.matmul(rotated_query, ops.swapaxes(rotated_key, -1, -2)) * decay
    plain = scores if same else ops.matmul(query, ops.swapaxes(key, -1, -2)) * decay
    numerator = ops.matmul(scores, value)
    denominator = ops.sum(plain, axis=-1, keepdims=True)

    # what each chunk adds, and the sums before each chunk
    weight = ops.expand_dims(ops.exp(log_weight - ops.expand_dims(ends, -1)), -1)
    added = [
        ops.matmul(ops.swapaxes(rotated_key, -1, -2), value * weight),
        ops.expand_dims(ops.sum(key * weight, axis=-2), -1),
    ]
    added = ops.concatenate([ops.expand_dims(sums, 2), ops.concatenate(added, axis=-1)], axis=2)
    scale = ops.broadcast_to(ops.expand_dims(scale, -1), (*ops.shape(ends)[:2], 1))
    scale = ops.concatenate([scale, ends], axis=-1)
    before, last = _running_sums(added, scale)
    carried = ops.expand_dims(ops.exp(ops.expand_dims(scale[..., :-1], -1) - largest), -1)
    # not two slices, whose gradients are slow
    earlier, normalizer = ops.split(before, [head_dim], axis=-1)
    numerator = numerator + ops.matmul(rotated_query, earlier) * carried
    denominator = denominator + ops.matmul(query, normalizer) * carried

    state = last, ops.broadcast_to(scale[..., -1], (batch, num_heads))
    return *(out_of_chunks(x, length) for x in (numerator, denominator)), state


def _running_sums(terms, scale):
    """Sums exp(scale_j - scale_i) terms_j over j <= i, along axis 2; `scale` never decreases.

    Returns all sums but the last, `(batch, num_heads, number - 1, ...)`, and the last.
    """
    batch, num_heads, number, *rest = ops.shape(terms)
    terms = ops.reshape(terms, (batch, num_heads, number, -1))
    if isinstance(number, int) and number <= _FEW:
        weight = _decay(scale, scale)
        parts = [ops.matmul(part, terms) for part in (weight[..., :-1, :], weight[..., -1:, :])]
    else:
        sums = _grouped_sums(terms, scale)
        parts = sums[:, :, :-1], sums[:, :, -1:]
    before, last = (ops.reshape(part, (batch, num_heads, -1, *rest)) for part in parts)
    return before, last[:, :, 0]


def _grouped_sums(terms, scale):
    """Computes all of `_running_sums` within groups of about sqrt(number) terms, then of groups."""
    number = ops.shape(terms)[2]
    size = _square_root(number)
    terms = in_chunks(terms, size)
    scale = in_chunks(scale, size, fill=-_NEVER)
    ends = scale[..., -1]
    within = ops.matmul(_decay(scale, scale), terms)
    groups = ops.matmul(_decay(ends, ends), within[:, :, :, -1])
    before = ops.concatenate([ops.zeros_like(groups[:, :, :1]), groups[:, :, :-1]], axis=2)
    scale_before = ops.concatenate([scale[..., :1, 0], ends[..., :-1]], axis=-1)
    carried = ops.expand_dims(ops.exp(ops.expand_dims(scale_before, -1) - scale), -1)
    return out_of_chunks(within + carried * ops.expand_dims(before, 3), number)


def _decay(log_weight, scale):
    """Returns exp(log_weight_j - scale_i) for j <= i, 0 for later j: `(..., length, length)`."""
    index = ops.arange(ops.shape(scale)[-1])
    difference = ops.expand_dims(log_weight, -2) - ops.expand_dims(scale, -1)
    return ops.exp(ops.where(index <= ops.expand_dims(index, 1), difference, _NEVER))


def _running_max(x):
    """Returns the running maximum over axes 2 and 3, without a gradient, in log2(length) steps."""
    shape = ops.shape(x)
    x = ops.stop_gradient(ops.reshape(x, (*shape[:2], -1)))
    length = ops.shape(x)[-1]
    index = ops.arange(length)

    def widen(window, x):
        return 2 * window, ops.maximum(x, ops.take(x, ops.maximum(index - window, 0), axis=-1))

    _, x = ops.while_loop(lambda window, x: window < length, widen, (1, x))
    return ops.reshape(x, shape)


def _square_root(number):
    """Rounds the square root of an integer or a tensor up."""
    if isinstance(number, int):
        return math.isqrt(number - 1) + 1
    return ops.cast(ops.ceil(ops.sqrt(ops.cast(number, "float32"))), "int32")
