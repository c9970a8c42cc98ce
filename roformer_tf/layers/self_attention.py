import contextvars
import functools
import math

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.attention_mask import (
    bias_at,
    bias_of_masks,
    causal_bias,
    dense_bias,
    tokens_at,
    with_mask_at,
)
from roformer_tf.layers.cache import as_index, in_plain_graph, is_prefill, read, write
from roformer_tf.layers.chunked_attention import chunked_attention
from roformer_tf.layers.config import deserialize_parts, own_arguments, shape_of_spec
from roformer_tf.layers.dropout import Dropout, dropout_seeds
from roformer_tf.layers.flat_dense import flatten, make_dense
from roformer_tf.layers.position_scheme import PositionScheme, tokens_of
from roformer_tf.portable import is_portable, set_while

_longest = contextvars.ContextVar("longest", default=None)


def inputs_up_to(length):
    """Context, or decorator, in which attention is traced for inputs of at most so many tokens.

    A graph for any length holds both ways to compute attention, and keeps what the gradients of
    both need. One that never sees a long input needs only the plain way: it is traced faster and
    takes less memory. Longer inputs get the same numbers, with all scores held at once.

    Args:
        length: int, or `None` if it is not known.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.layers.self_attention import SelfAttention, inputs_up_to
    >>> layer = SelfAttention(num_heads=2, head_dim=4)
    >>> @tf.function(input_signature=[tf.TensorSpec((None, None, 8))])
    ... def attend(x):
    ...     return layer(x)
    >>> with inputs_up_to(128):
    ...     graph = attend.get_concrete_function().graph
    >>> any("If" in operation.type for operation in graph.get_operations())
    False
    """
    return set_while(_longest, length)


def short_up_to(length):
    """Returns the length up to which inputs are short, or `None` if `length` itself is not.

    A model traces one graph in `inputs_up_to` of this length for all short inputs, and one for any
    input when the first long one comes.

    Args:
        length: int.
    """
    limit = SelfAttention.chunked_above
    return limit if limit is not None and length <= limit else None


class Attention(keras.layers.Layer):
    """Base class of `SelfAttention` and `CrossAttention`: heads, softmax, output projection.

    Subclasses create their projections, and `output_dense` as the last one.
    """

    def __init__(self, num_heads, head_dim, dropout, use_bias, kernel_initializer, **kwargs):
        # autocast would round the float32 `attention_bias` and sines; the dense layers cast `x`
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        check_positive_integer("num_heads", num_heads)
        check_positive_integer("head_dim", head_dim)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def get_config(self):
        return {**own_arguments(self, Attention), **super().get_config()}

    def average(self, scores, value, attention_bias=None, training=None):
        """Averages values by the softmax of their scores, which sums in float32.

        Args:
            scores: Tensor `(batch, num_heads, query, key)`, float32 unless `has_narrow_softmax`.
            value: Tensor `(batch, num_heads, key, head_dim)`.
            attention_bias: float32 tensor to add to the scores, or `None`.
            training: bool. Whether to apply dropout.

        Returns:
            The averages `(batch, num_heads, query, head_dim)` and the weights, in the dtype of
            `value`.
        """
        if isinstance(attention_bias, dict):
            attention_bias = dense_bias(attention_bias)
        if attention_bias is not None:
            scores = scores + ops.cast(attention_bias, scores.dtype)
        if scores.shape[-1] == 1:  # a single token; Keras warns of a softmax over one number
            weights = ops.ones_like(scores)
        else:
            weights = ops.softmax(scores, axis=-1)
        weights = self.dropout_layer(ops.cast(weights, value.dtype), training=training)
        return ops.matmul(weights, value), weights

    def merge(self, output, shape):
        """Merges the heads of `(batch, num_heads, length, head_dim)` and projects them.

        `shape` is the `(batch, length)` of the result.
        """
        output, width = ops.transpose(output, (0, 2, 1, 3)), self.num_heads * self.head_dim
        output = self.output_dense(ops.reshape(output, (-1, width)))
        return ops.reshape(output, (*shape, width))

    def compute_output_spec(self, x, *args, **kwargs):
        shape = (*x.shape[:-1], self.num_heads * self.head_dim)
        return keras.KerasTensor(shape, self.compute_dtype)

    compute_output_shape = shape_of_spec


def has_narrow_softmax(dtype):
    """Returns whether a softmax of scores in `dtype` sums in float32 by itself, as oneDNN's does.

    Scores then need no copy in float32, which takes longer than the products of a long text. For
    inference only: the gradient of such a softmax sums in `dtype`.

    Example:

    >>> from roformer_tf.layers.self_attention import has_narrow_softmax
    >>> has_narrow_softmax("float32")
    False
    """
    if dtype != "bfloat16" or is_portable() or not in_plain_graph():
        return False
    return _bfloat16_softmax_sums_in_float32()


@functools.cache
def _bfloat16_softmax_sums_in_float32():
    """Tries it with a long row: TensorFlow's own kernels would sum that in bfloat16."""
    import tensorflow as tf

    if tf.config.list_logical_devices("GPU"):
        return False
    with tf.init_scope():
        row = tf.cast(np.linspace(-4, 4, 4096)[None], tf.bfloat16)
        wide = tf.nn.softmax(tf.cast(row, tf.float32))
        error = tf.abs(tf.cast(tf.nn.softmax(row), tf.float32) - wide)
        return bool(tf.reduce_all(error <= 2**-8 * wide))  # rounded once


@keras.saving.register_keras_serializable(package="roformer_tf")
class SelfAttention(Attention):
    """Multi-head softmax self-attention with a position scheme.

    One product computes queries, keys and values. The softmax sums in float32. The columns
    of `qkv` are `[query | key | value]`, each head by head. With `RotaryPosition`, the features of
    a query or key head are in the half layout (`rotary.interleaved_to_half`).

    Inputs longer than `chunked_above` compute the scores chunk by chunk, forward and backward,
    with the same result (`chunked_attention`). If the graph has a static length, the choice is
    made while tracing, otherwise at run time. A position scheme with `needs_scores`, or an
    `attention_bias` with a row for each query, always holds all scores at once.

    Args:
        num_heads: int. Number of attention heads.
        head_dim: int. Size of each head. The layer is `num_heads * head_dim` wide.
        dropout: float. Rate on the attention probabilities.
        use_bias: bool. Whether the projections have biases (v1 yes, v2 no).
        position_scheme: `PositionScheme`, or `None` for attention without positions.
        kernel_initializer: Initializer of both projections.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        attention_bias: float32 tensor that broadcasts to `(batch, num_heads, query, key)`, added to
            the scores (`AttentionMask`), or the dictionary that `AttentionMask(dense=False)`
            returns. Takes the place of all masks below.
        position: Context from `position_scheme`. Defaults to that of positions 0, 1, 2, …
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Defaults to the mask
            that Keras propagates with `x`.
        attention_mask: bool tensor `(batch, query, key)`, True where a query sees a key.
        use_causal_mask: bool. Whether a query sees only the keys up to its own position.
        return_attention_scores: bool. Whether to return the attention probabilities too.
        output_positions: int tensor `(batch, count)`, or `None` for all. The positions whose
            outputs to return. With a count of 1, queries at other positions are left out.

    A model with many layers computes `attention_bias` and `position` once and passes them to each.

    Returns:
        Tensor `(batch, length, num_heads * head_dim)`, or `(batch, count, num_heads * head_dim)`
        with `output_positions`. With `return_attention_scores` a tuple of it and the probabilities
        `(batch, num_heads, query, key)` of all queries.

    Attributes:
        chunked_above: int. Longest input whose scores are held at once, or `None` for any length.
            Set it on the class or on a layer before the first call. Longer inputs have no second
            derivatives.

    Raises:
        ValueError: If `num_heads` or `head_dim` is not a positive integer, or the scheme is added
            to the embeddings.

    `build_cache` and `call_with_cache` compute a sequence one or more tokens at a time.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RotaryPosition, SelfAttention
    >>> scheme = RotaryPosition(head_dim=4)
    >>> layer = SelfAttention(num_heads=2, head_dim=4, position_scheme=scheme)
    >>> x = np.ones((1, 5, 8), "float32")
    >>> whole = layer(x, use_causal_mask=True)
    >>> tuple(whole.shape)
    (1, 5, 8)

    With a cache, the second call reads the keys and values of the first:

    >>> cache = layer.build_cache(batch_size=1, max_length=5)
    >>> first, cache = layer.call_with_cache(x[:, :2], cache, 0)
    >>> last, cache = layer.call_with_cache(x[:, 2:], cache, 2)
    >>> bool(np.allclose(last, whole[:, 2:], atol=1e-6))
    True

    Reference: equation 2 of arXiv 2104.09864; `MultiHeadAttention` of bert4keras' `layers.py`.
    """

    chunked_above = 2048

    def __init__(
        self,
        num_heads,
        head_dim,
        dropout=0.0,
        use_bias=True,
        position_scheme=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, dropout, use_bias, kernel_initializer, **kwargs)
        self.position_scheme = position_scheme or PositionScheme(
            dtype=self.dtype_policy, name="position_scheme"
        )
        if self.position_scheme.added_to_input:
            raise ValueError(
                "`position_scheme` must not be one that is added to the embeddings. Add its "
                "context to `x` and leave `position_scheme` out. Received: "
                f"position_scheme={type(self.position_scheme).__name__}"
            )
        self.qkv = make_dense(self, 3 * num_heads * head_dim, "qkv")
        self.output_dense = make_dense(self, num_heads * head_dim, "output_dense")

    def build(self, x_shape, *shapes, **named_shapes):
        self.qkv.build(x_shape)
        self.output_dense.build((*x_shape[:-1], self.num_heads * self.head_dim))
        if not self.position_scheme.built:  # a model has called, and so built, its schemes already
            self.position_scheme.build()

    def call(
        self,
        x,
        attention_bias=None,
        position=None,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
        output_positions=None,
    ):
        if attention_bias is None:
            attention_bias = bias_of_masks(x, padding_mask, attention_mask, use_causal_mask)
        if position is None:
            position = self.position_scheme(tokens_of(x), padding_mask=padding_mask)
        shape = ops.shape(x)[:2]
        query, key, value = self._with_positions(*self.split(x, shape), position)
        if return_attention_scores:
            output, weights = self._plain(query, key, value, attention_bias, position, training)
            output = tokens_at(self.merge(output, shape), output_positions)
            return with_mask_at(output, x, output_positions), weights
        if self._can_leave_out_queries(attention_bias, output_positions):
            query = tokens_at(query, output_positions)
            bias = bias_at(attention_bias, output_positions)
            output = self._plain(query, key, value, bias, position, training)[0]
            return with_mask_at(self.merge(output, (shape[0], 1)), x, output_positions)
        output = self._attend(query, key, value, shape[1], attention_bias, position, training)
        output = tokens_at(self.merge(output, shape), output_positions)
        return with_mask_at(output, x, output_positions)

    def build_cache(self, batch_size, max_length):
        """Creates an empty key/value cache.

        Args:
            batch_size: positive integer or scalar tensor.
            max_length: positive integer or scalar tensor, the maximum number of tokens of a
                sequence.

        Returns:
            Tuple of keys and values, zeros `(batch_size, num_heads, max_length, head_dim)` both.
        """
        shape = (batch_size, self.num_heads, max_length, self.head_dim)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def call_with_cache(self, x, cache, cache_update_index, attention_bias=None, position=None):
        """Computes attention for the next tokens with a key/value cache of the earlier ones.

        Args:
            x: Tensor `(batch, length, hidden_dim)`. One or more tokens, such as a prompt.
            cache: Output of `build_cache`, or of the call before.
            cache_update_index: int or scalar int tensor. Position of the first of these tokens.
                If it is the Python integer 0, these tokens attend to each other only. Use it for
                long prompts.
            attention_bias: float32 tensor that broadcasts to
                `(batch, num_heads, length, max_length)`. It must also hide the positions of the
                cache that are not written yet. If `cache_update_index` is the integer 0, all that
                `call` takes. Defaults to a causal mask.
            position: Context from `position_scheme` for these tokens' positions. A scheme that
                `depends_on_length` needs the context of all positions of the cache, unless
                `cache_update_index` is the integer 0. Defaults to positions from
                `cache_update_index` on.

        Returns:
            Tuple of the outputs `(batch, length, num_heads * head_dim)` and the new cache.

        Raises:
            ValueError: If the position scheme needs the scores.
        """
        scheme = self.position_scheme
        if scheme.needs_scores:
            raise ValueError(
                "A position scheme that reads or changes the scores supports no cache. Call the "
                "layer on the whole sequence instead. "
                f"Received: position_scheme={type(scheme).__name__}"
            )
        if not self.built:
            self.build(x.shape)
        cache_update_index = as_index(cache_update_index)
        if attention_bias is None:
            attention_bias = causal_bias(x, cache_update_index, ops.shape(cache[0])[2])
        if position is None:
            position = self._positions_in_cache(x, cache, cache_update_index)
        shape = ops.shape(x)[:2]
        query, key, value = self.split(x, shape)
        prefill, here = is_prefill(cache_update_index), position

        def update(key, value):
            entries = zip(cache, (key, value))
            return tuple(write(part, entry, cache_update_index) for part, entry in entries)

        if scheme.depends_on_length:
            # every step rotates all keys again, so the cache holds unrotated keys
            cache = update(key, value)
            if not prefill:
                here = keras.tree.map_structure(
                    lambda part: read(part, cache_update_index, shape[1]), position
                )
                key, value = cache
            query, _ = scheme.apply_to_query_key(query, query, here)
            _, key = scheme.apply_to_query_key(key, key, position)
            value = scheme.apply_to_value(value, position)
        else:
            query, key, value = self._with_positions(query, key, value, position)
            cache = update(key, value)
            if not prefill:
                key, value = cache
        if not prefill:
            output = self._plain(query, key, value, attention_bias, here)[0]
            return self.merge(output, shape), cache
        if attention_bias is not None and not isinstance(attention_bias, dict):
            attention_bias = attention_bias[..., : shape[1]]
        output = self._attend(query, key, value, shape[1], attention_bias, here)
        return self.merge(output, shape), cache

    def _positions_in_cache(self, x, cache, cache_update_index):
        scheme, length = self.position_scheme, ops.shape(x)[1]
        if scheme.depends_on_length and not is_prefill(cache_update_index):
            every = ops.zeros((1, ops.shape(cache[0])[2]), "int32")
            return scheme(every, current_length=cache_update_index + length)
        positions = cache_update_index + ops.arange(length, dtype="int32")
        return scheme(tokens_of(x), position_ids=positions[None])

    def _with_positions(self, query, key, value, position):
        query, key = self.position_scheme.apply_to_query_key(query, key, position)
        return query, key, self.position_scheme.apply_to_value(value, position)

    def _attend(self, query, key, value, length, attention_bias, position, training=False):
        """Computes the averages `(batch, head, query, head_dim)`, of a long input in chunks."""
        scheme = self.position_scheme

        def plain():
            return self._plain(query, key, value, attention_bias, position, training)[0]

        def chunked():
            scaled = query / math.sqrt(scheme.num_score_terms * self.head_dim)
            rate = 0.0 if seed is None else self.dropout
            output = chunked_attention(scaled, key, value, attention_bias, rate, seed)
            return scheme.apply_to_output(output, None, position)

        seed = None
        long = self._can_be_chunked(attention_bias) and length > self.chunked_above
        if long is False:
            return plain()
        if training and self.dropout:
            # drawn here, as a generator must not count in one branch only
            seed = self.dropout_layer.next_seed()
        if long is True:
            return chunked()
        with dropout_seeds([] if seed is None else [self.dropout_layer], [seed]):
            return ops.cond(long, chunked, plain)

    def split(self, x, shape):
        """Returns queries, keys and values, `(batch, num_heads, length, head_dim)` each.

        `shape` is the `(batch, length)` of `x`.
        """
        qkv = self.qkv(flatten(x))
        if x.shape[1] == 1:  # a step: nothing to transpose
            qkv = ops.reshape(qkv, (-1, 3, self.num_heads, 1, self.head_dim))
            return ops.unstack(qkv, 3, axis=1)
        qkv = ops.reshape(qkv, (*shape, 3, self.num_heads, self.head_dim))
        return ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), 3)

    def _can_be_chunked(self, bias):
        if self.chunked_above is None or self.position_scheme.needs_scores or is_portable():
            return False
        longest = _longest.get()
        if longest is not None and longest <= self.chunked_above:
            return False
        return _has_no_rows(bias)

    def _can_leave_out_queries(self, bias, output_positions):
        # the scores of several positions may be too many to be held at once
        if output_positions is None or output_positions.shape[1] != 1:
            return False
        scheme = self.position_scheme
        return not (scheme.needs_scores or scheme.changes_output) and _has_no_rows(bias)

    def _plain(self, query, key, value, attention_bias, position, training=False):
        """Computes the averages `(batch, head, query, head_dim)` with all scores at once."""
        scheme = self.position_scheme
        scale = 1.0 / math.sqrt(scheme.num_score_terms * self.head_dim)
        narrow = not (training or scheme.needs_scores) and has_narrow_softmax(self.compute_dtype)
        if self.compute_dtype == "float32" or narrow:
            # product, scale and bias in this order: TensorFlow runs them as one oneDNN kernel
            scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) * scale
            query = query * scale
        else:
            query = query * scale  # first: a product of float16 could overflow
            scores = ops.matmul(query, ops.swapaxes(key, -1, -2))  # (batch, head, query, key)
        scores = scheme.apply_to_scores(scores, query, key, position, self)
        if not narrow:
            scores = ops.cast(scores, "float32")
        output, weights = self.average(scores, value, attention_bias, training)
        return scheme.apply_to_output(output, weights, position), weights

    def compute_output_spec(
        self, x, *args, return_attention_scores=False, output_positions=None, **kwargs
    ):
        output = super().compute_output_spec(x)
        if output_positions is not None:
            shape = (x.shape[0], output_positions.shape[1], output.shape[2])
            output = keras.KerasTensor(shape, self.compute_dtype)
            output = with_mask_at(output, x, output_positions)
        if not return_attention_scores:
            return output
        batch, length = x.shape[:2]
        shape = (batch, self.num_heads, length, length)
        return output, keras.KerasTensor(shape, self.compute_dtype)

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))


def _has_no_rows(bias):
    """Returns whether the bias has no row for each query."""
    return bias is None or isinstance(bias, dict) or (len(bias.shape) == 4 and bias.shape[2] == 1)
