import functools

import keras
from keras import ops
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.attention_mask import HIDDEN
from roformer_tf.layers.cache import as_index, check_room
from roformer_tf.layers.config import deserialize_parts, serialized
from roformer_tf.layers.feature_map import FeatureMap, check_no_scores
from roformer_tf.layers.linear_attention import initial_state, linear_attention
from roformer_tf.layers.rotary_embedding import RotaryEmbedding


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryMultiHeadAttention(keras.layers.MultiHeadAttention):
    """Multi-head attention with rotary positions. A drop-in for `keras.layers.MultiHeadAttention`.

    Queries and keys are rotated by their positions after their projections. Weights and their names
    are those of `keras.layers.MultiHeadAttention`.

    Args:
        num_heads: int. Number of attention heads.
        key_dim: even int. Size of each head of queries and keys.
        num_key_value_heads: int. Number of heads of keys and values, each shared by
            `num_heads / num_key_value_heads` heads of queries. Defaults to `num_heads`.
        max_wavelength: float. See `RotaryEmbedding`.
        layout: `"half"` or `"interleaved"`. See `RotaryEmbedding`.
        rotary_dim: even int. See `RotaryEmbedding`.
        rope_scaling: dict. See `RotaryEmbedding`.
        feature_map: `FeatureMap`, such as `EluFeatureMap()`, for linear attention; see
            `LinearAttention`. Defaults to the softmax.
        **kwargs: Arguments of `keras.layers.MultiHeadAttention`.

    Call arguments:
        query: Tensor `(batch, length, dim)`.
        value: Tensor `(batch, key_length, dim)`.
        key: Tensor `(batch, key_length, dim)`. Defaults to `value`.
        attention_mask: bool tensor that broadcasts to `(batch, length, key_length)`, True where a
            query sees a key. It is combined with the masks that Keras propagates, such as of
            `Embedding(mask_zero=True)`. With a feature map it must be the same for all queries,
            `(batch, 1, key_length)`; with a cache too, of these tokens.
        return_attention_scores: bool. Whether to return the attention probabilities too. There are
            none with a feature map.
        use_causal_mask: bool. Whether a query sees only the keys up to its own position.
        positions: int or float tensor `(length,)` or `(batch, length)`, the positions of the
            queries. Defaults to 0, 1, 2, …
        key_positions: The same for the keys. Defaults to `positions` if `key_length` is `length`.
        cache: Output of `build_cache`, or of the previous call.
        cache_update_index: int or scalar int tensor. Position of the first of these tokens; needed
            with a cache.

    Returns:
        Tensor `(batch, length, dim)`; followed by the probabilities `(batch, num_heads, length,
        key_length)` with `return_attention_scores`, and by the new cache with `cache`.

    Raises:
        ValueError: If `num_key_value_heads` does not divide `num_heads`, inputs have more than one
            sequence axis, only one of `cache` and `cache_update_index` is given, a cache is full,
            or linear attention is asked for scores, a mask by query or a sliding window.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RotaryMultiHeadAttention
    >>> layer = RotaryMultiHeadAttention(num_heads=4, key_dim=8, num_key_value_heads=2)
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 32)).astype("float32")
    >>> whole = layer(x, x, use_causal_mask=True)
    >>> tuple(whole.shape)
    (2, 5, 32)

    With a cache, the second call reads the keys and values of the first:

    >>> cache = layer.build_cache(batch_size=2, max_length=5)
    >>> options = {"cache_update_index": 0, "use_causal_mask": True}
    >>> first, cache = layer(x[:, :4], x[:, :4], cache=cache, **options)
    >>> last, cache = layer(x[:, 4:], x[:, 4:], cache=cache, cache_update_index=4)
    >>> bool(np.allclose(last, whole[:, 4:], atol=1e-6))
    True

    Linear attention needs no memory for each pair of tokens, and its cache does not grow:

    >>> from roformer_tf.layers import EluFeatureMap
    >>> layer = RotaryMultiHeadAttention(num_heads=4, key_dim=8, feature_map=EluFeatureMap())
    >>> tuple(layer(x, x, use_causal_mask=True).shape)
    (2, 5, 32)

    Reference: equations 16 and 19 of arXiv 2104.09864; grouped heads: arXiv 2305.13245.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        num_key_value_heads=None,
        max_wavelength=10000,
        layout="half",
        rotary_dim=None,
        rope_scaling=None,
        feature_map=None,
        **kwargs,
    ):
        # autocast would round float32 positions, features and sums; the dense layers cast the inputs
        super().__init__(num_heads, key_dim, autocast=False, **kwargs)
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        check_positive_integer("num_key_value_heads", self.num_key_value_heads)
        if num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. Received: "
                f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
        if not (feature_map is None or isinstance(feature_map, FeatureMap)):
            raise ValueError(
                "`feature_map` must be a `FeatureMap` such as `EluFeatureMap()`, or `None`. "
                f"Received: feature_map={feature_map!r}"
            )
        if feature_map is not None and self._sliding_window is not None:
            raise ValueError(
                "Linear attention has no sliding window. Received: a feature_map and "
                f"sliding_window={self._sliding_window}"
            )
        self.feature_map = feature_map
        self.rotary_embedding = RotaryEmbedding(
            max_wavelength,
            layout=layout,
            rotary_dim=rotary_dim,
            rope_scaling=rope_scaling,
            autocast=False,
            dtype=self.dtype_policy,
            name="rotary_embedding",
        )

    def build(self, query_shape, value_shape, key_shape=None):
        if len(query_shape) != 3 or len(value_shape) != 3:
            raise ValueError(
                "Queries and values must have the shape (batch, length, dim): positions need one "
                f"sequence axis. Received: shapes {tuple(query_shape)} and {tuple(value_shape)}"
            )
        super().build(query_shape, value_shape, key_shape)
        if self.num_key_value_heads != self.num_heads:
            key_shape = value_shape if key_shape is None else key_shape
            self._key_dense = self._grouped(self._key_dense, self.key_dim, key_shape)
            self._value_dense = self._grouped(self._value_dense, self.value_dim, value_shape)
        if self.feature_map is not None and not self.feature_map.built:  # a loaded one is
            shape = (None, self.num_heads, None, self.key_dim)
            self.feature_map.build(shape, shape)

    def _grouped(self, dense, size, shape):
        """Replaces the projection that Keras built by one to fewer heads."""
        self._tracker.untrack(dense)
        grouped = keras.layers.EinsumDense(
            "abc,cde->abde",
            output_shape=(None, self.num_key_value_heads, size),
            bias_axes="de" if self.use_bias else None,
            name=dense.name,
            **self._get_common_kwargs_for_sublayer(),
        )
        grouped.build(shape)
        return grouped

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        positions=None,
        key_positions=None,
        cache=None,
        cache_update_index=None,
    ):
        if (cache is None) != (cache_update_index is None):
            raise ValueError(
                "Pass both `cache` and `cache_update_index`, or none of them. Received: "
                f"cache={'None' if cache is None else '(…)'}, "
                f"cache_update_index={cache_update_index}"
            )
        key = value if key is None else key
        cached = cache is not None
        if cached:
            cache_update_index = as_index(cache_update_index)
        is_masked = value_mask is not None or key_mask is not None
        if cached and is_masked and self.feature_map is None:
            raise ValueError(
                "A mask that Keras propagates covers the new tokens only. With a cache, pass "
                "`attention_mask` for all positions of the cache."
            )
        no_mask = all(m is None for m in (query_mask, value_mask, key_mask, attention_mask))
        is_causal = use_causal_mask and no_mask and not cached and self._sliding_window is None
        is_self = query is key
        gate, query, key, value = self._project(query, key, value)
        if positions is None and cached:
            positions = cache_update_index + ops.arange(ops.shape(query)[1], dtype="int32")
        if key_positions is None and is_self:
            key_positions = positions
        elif key_positions is None and positions is not None:
            key_positions = _positions_of_keys(positions, query, key)
        heads_per_key = self.num_heads // self.num_key_value_heads
        if self.feature_map is not None:
            check_no_scores(return_attention_scores, self.feature_map)
            if heads_per_key > 1:
                key, value = (ops.repeat(x, heads_per_key, axis=2) for x in (key, value))
            output, cache = self._linear_attention(
                query,
                key,
                value,
                (positions, key_positions),
                [value_mask, key_mask],
                attention_mask,
                use_causal_mask,
                cache,
                training,
            )
            output = self._output_dense(output if gate is None else output * gate)
            return (output, cache) if cached else output
        query = self.rotary_embedding(query, positions=positions)
        key = self.rotary_embedding(key, positions=key_positions)
        if cached:
            check_room(cache.shape[2], key.shape[1], cache_update_index)
            update = ops.cast(ops.stack([key, value], axis=1), cache.dtype)
            cache = ops.slice_update(cache, (0, 0, cache_update_index, 0, 0), update)
            key, value = ops.unstack(cache, 2, axis=1)
            visible = self._visible_in_cache(query, key, cache_update_index, use_causal_mask)
            if attention_mask is not None:
                visible = ops.logical_and(ops.cast(attention_mask, "bool"), visible)
            if query_mask is not None:
                visible = ops.logical_and(
                    ops.expand_dims(ops.cast(query_mask, "bool"), -1), visible
                )
            attention_mask = visible
        elif not is_causal:
            attention_mask = self._compute_attention_mask(
                query,
                value,
                query_mask=query_mask,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
            )
        if heads_per_key > 1:
            key, value = (ops.repeat(x, heads_per_key, axis=2) for x in (key, value))
        output, scores = self._compute_attention(
            query,
            key,
            value,
            attention_mask,
            training,
            return_attention_scores,
            use_causal_mask=is_causal,
        )
        outputs = (self._output_dense(output if gate is None else output * gate),)
        if return_attention_scores:
            outputs += (scores,)
        if cached:
            outputs += (cache,)
        return outputs[0] if len(outputs) == 1 else outputs

    def _linear_attention(
        self, query, key, value, positions, masks, attention_mask, causal, cache, training
    ):
        """Returns the heads `(batch, length, num_heads, value_dim)` and the new cache."""
        feature_map, rotary = self.feature_map, self.rotary_embedding
        length, key_length = query.shape[1], key.shape[1]
        if cache is not None and not causal and length != 1:
            raise ValueError(
                "A cache of linear attention is causal: pass `use_causal_mask=True`. Received: "
                f"use_causal_mask=False, {length} tokens and a cache"
            )
        causal = causal or cache is not None
        if causal and (feature_map.reads_all_keys or length != key_length):
            raise ValueError(
                "In causal linear attention there are as many keys as queries, and the features "
                "of a key do not depend on later keys. Received: "
                f"{length} queries, {key_length} keys, "
                f"feature_map={type(feature_map).__name__}, "
                f"reads_all_keys={feature_map.reads_all_keys}"
            )
        visible = [mask[:, None] for mask in masks if mask is not None]
        if attention_mask is not None:
            shape = ops.shape(attention_mask)
            if len(shape) < 2 or shape[-2] != 1:
                raise ValueError(
                    "`attention_mask` of linear attention must be the same for all queries, of "
                    "shape (batch, 1, key_length). For causal attention pass "
                    f"`use_causal_mask=True`. Received: shape {tuple(attention_mask.shape)}"
                )
            visible.append(ops.reshape(attention_mask, (-1, 1, shape[-1])))
        key_bias = None
        if visible:
            visible = functools.reduce(ops.logical_and, [ops.cast(x, "bool") for x in visible])
            key_bias = ops.where(visible, 0.0, HIDDEN)
        # YaRN's factor sharpens a softmax. Features must not be larger than in the denominator.
        factor = 1.0 if feature_map.rotate_inputs else rotary.query_key_factor

        def rotate(*features):
            return tuple(
                ops.swapaxes(rotary(ops.swapaxes(x, 1, 2), positions=p), 1, 2) / factor
                for x, p in zip(features, positions, strict=True)
            )

        output, cache = linear_attention(
            *(ops.swapaxes(ops.cast(x, "float32"), 1, 2) for x in (query, key, value)),
            feature_map,
            rotate,
            key_bias=key_bias,
            causal=causal,
            state=cache,
            training=training,
        )
        output = ops.cast(ops.swapaxes(output, 1, 2), self.compute_dtype)
        if self._dropout:
            output = self._dropout_layer(output, training=training)
        return output, cache

    def _project(self, *inputs):
        """Projects queries, keys and values. Hides their masks meanwhile, as dense layers warn."""
        masks = [get_keras_mask(x) for x in inputs]
        for x, mask in zip(inputs, masks, strict=True):
            if mask is not None:
                set_keras_mask(x, None)
        query, key, value = inputs
        gate = self._gate_dense(query) if self._use_gate else None
        outputs = gate, self._query_dense(query), self._key_dense(key), self._value_dense(value)
        for x, mask in zip(inputs, masks, strict=True):
            if mask is not None:
                set_keras_mask(x, mask)
        return outputs

    def _visible_in_cache(self, query, key, cache_update_index, causal):
        """Returns the bool mask `(1, length, max_length)` of the positions that queries see."""
        length, places = ops.shape(query)[1], ops.arange(ops.shape(key)[1])
        rows = ops.arange(length)
        written = rows if causal else ops.full((length,), length - 1, "int32")
        visible = places[None] <= cache_update_index + written[:, None]
        if self._sliding_window is not None:
            distance = places[None] - (cache_update_index + rows[:, None])
            visible = ops.logical_and(visible, ops.abs(distance) < self._sliding_window)
        return visible[None]

    def build_cache(self, batch_size, max_length):
        """Makes an empty key/value cache.

        Args:
            batch_size: int or scalar tensor.
            max_length: int or scalar tensor. Maximum number of tokens.

        Returns:
            Tensor of zeros `(batch_size, 2, max_length, num_key_value_heads, key_dim)`, as in
            `keras_hub.layers.CachedMultiHeadAttention`. With a feature map the tuple of sums of
            `LinearAttention.build_cache`, whose size does not depend on `max_length`.

        Raises:
            ValueError: If `value_dim` is not `key_dim`, or `rope_scaling` depends on the length.
        """
        if self.feature_map is not None and not self.rotary_embedding.depends_on_length:
            num_features = self.feature_map.feature_dim(self.key_dim)
            return initial_state(batch_size, self.num_heads, num_features, self.value_dim)
        if self.value_dim != self.key_dim or self.rotary_embedding.depends_on_length:
            raise ValueError(
                "A cache holds rotated keys and values of one size, so it needs `value_dim` = "
                "`key_dim` and a `rope_scaling` that does not depend on the length. Received: "
                f"value_dim={self.value_dim}, key_dim={self.key_dim}, "
                f"rope_scaling={self.rotary_embedding.rope_scaling}"
            )
        shape = (batch_size, 2, max_length, self.num_key_value_heads, self.key_dim)
        return ops.zeros(shape, self.compute_dtype)

    def compute_output_spec(self, query, value, key=None, cache=None, **kwargs):
        arguments = ("attention_mask", "return_attention_scores", "training", "use_causal_mask")
        options = {name: kwargs[name] for name in arguments if name in kwargs}
        outputs = super().compute_output_spec(query, value, key, **options)
        if cache is None:
            return outputs
        # not the symbols of the cache given, which are inputs
        cache = keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), cache)
        return (*(outputs if isinstance(outputs, tuple) else (outputs,)), cache)

    def get_config(self):
        rotary = self.rotary_embedding
        return {
            **super().get_config(),
            "num_key_value_heads": self.num_key_value_heads,
            "max_wavelength": rotary.max_wavelength,
            "layout": rotary.layout,
            "rotary_dim": rotary.rotary_dim,
            "rope_scaling": rotary.rope_scaling,
            "feature_map": serialized(self.feature_map),
        }

    @classmethod
    def from_config(cls, config):
        return super().from_config(deserialize_parts(config))


def _positions_of_keys(positions, query, key):
    """Returns the positions of the queries if there are as many keys, and otherwise 0, 1, 2, …"""
    length, key_length = ops.shape(query)[1], ops.shape(key)[1]
    counted = ops.arange(key_length, dtype="int32")
    if isinstance(length, int) and isinstance(key_length, int):
        return positions if length == key_length else counted
    # known at run time only, and one expression for both: compiled branches have one shape
    same = ops.take(positions, ops.minimum(counted, length - 1), axis=-1)
    return ops.where(ops.equal(length, key_length), same, counted)
