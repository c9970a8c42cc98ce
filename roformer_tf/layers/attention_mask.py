import keras
import numpy as np
from keras import ops
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from roformer_tf.checks import check_one_of
from roformer_tf.layers.cache import as_index, is_prefill

MASKINGS = ("bidirectional", "causal", "unilm")

# Finite, so that a query without a visible key gives the mean of all values and not NaN. Far enough
# below any score that exp() of the difference is exactly 0 in float32. A NumPy number, because
# `ops.where` of two Python numbers has the dtype `keras.config.floatx()`.
HIDDEN = np.float32(-1e9)


@keras.saving.register_keras_serializable(package="roformer_tf")
class AttentionMask(keras.layers.Layer):
    """Computes which keys a query sees: a bias on the attention scores, 0 or -1e9 (hidden).

    Padding hides *keys*. Queries at padded positions are computed like any other, as in the
    original.

    * `"bidirectional"`: every query sees every key that is not padding.
    * `"causal"`: query i sees keys j <= i (bert4keras' `application="lm"`).
    * `"unilm"`: query i sees key j if `cumsum(segment_ids)[j] <= cumsum(segment_ids)[i]`: segment 0
      sees all of segment 0, and segment 1 sees segment 0 and its own past (bert4keras'
      `application="unilm"`).

    Pass `document_ids` if several documents are packed into a sequence. A query then sees only its
    own document, and the rules hold within it.

    Every rule has the form: query i sees key j if j is not padding, `order[j] <= order[i]`, and
    both are in the same document. With `dense=False` the layer returns these three vectors instead
    of a number for each query and key. `SelfAttention` and `dense_bias` accept them.

    Args:
        masking: `"bidirectional"`, `"causal"` or `"unilm"`.
        dense: bool. Whether to return one tensor or its parts.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens, 0 for padding.
        segment_ids: int tensor `(batch, length)`; needed for `"unilm"` only.
        document_ids: int tensor `(batch, length)`, the same number for all tokens of a document, or
            `None` for one document per sequence.

    Returns:
        float32 tensor `(batch, 1, 1, length)` (bidirectional without `document_ids`) or `(batch, 1,
        length, length)`: batch, head, query, key. With `dense=False` a dictionary: `"bias"`,
        float32 `(batch, 1, 1, length)`, of padding; `"order"`, int32 `(1 or batch, length)`, which
        never decreases along a sequence (not with `"bidirectional"`); and `"document"`, the
        `document_ids`.

    Raises:
        ValueError: If `masking` is unknown, or `segment_ids` is missing for `"unilm"`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import AttentionMask
    >>> bias = AttentionMask("causal")(np.array([[1, 1, 0]]))
    >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    >>> bias = AttentionMask()(np.array([[1, 1, 1]]), document_ids=np.array([[1, 1, 2]]))
    >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    >>> parts = AttentionMask("causal", dense=False)(np.array([[1, 1, 0]]))
    >>> np.array(parts["order"]).tolist()
    [[0, 1, 2]]

    Reference: `LM_Mask` and `UniLM_Mask` of bert4keras' `models.py`.
    """

    def __init__(self, masking="bidirectional", dense=True, **kwargs):
        super().__init__(**kwargs)
        check_one_of("masking", masking, MASKINGS)
        self.masking = masking
        self.dense = dense

    def call(self, padding_mask, segment_ids=None, document_ids=None):
        # (batch, 1, 1, key), without a strided slice, of which LiteRT knows simple ones only
        real = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
        parts = {"bias": ops.where(real, 0.0, HIDDEN)}
        if document_ids is not None:
            parts["document"] = document_ids
        if self.masking == "causal":
            parts["order"] = ops.arange(ops.shape(padding_mask)[1], dtype="int32")[None]
        elif self.masking == "unilm":
            if segment_ids is None:
                raise ValueError(
                    "`masking='unilm'` needs `segment_ids`. Received: segment_ids=None"
                )
            parts["order"] = ops.cumsum(ops.cast(segment_ids, "int32"), axis=1)
        return dense_bias(parts) if self.dense else parts

    def build_cache(self, batch_size, max_length):
        """Creates the cache of a mask, in which all positions are hidden.

        Args:
            batch_size: positive integer or scalar tensor.
            max_length: positive integer or scalar tensor, the maximum number of tokens of a
                sequence.

        Returns:
            Dict of tensors `(batch_size, max_length)`, like the output with `dense=False`: float32
            `"bias"`, and with `"unilm"` int32 `"order"`.
        """
        shape = (batch_size, max_length)
        cache = {"bias": ops.full(shape, HIDDEN, "float32")}
        if self.masking == "unilm":
            cache["order"] = ops.zeros(shape, "int32")
        return cache

    def call_with_cache(self, padding_mask, cache, cache_update_index, segment_ids=None):
        """Returns the mask of the next tokens over themselves and all earlier ones.

        Args:
            padding_mask: See `call`. For the tokens at positions `cache_update_index` to
                `cache_update_index + length - 1`.
            cache: Output of `build_cache`, or of the call before.
            cache_update_index: integer or scalar integer tensor.
            segment_ids: See `call`. For these tokens.

        Returns:
            Tuple of the bias on the scores and the new cache. The bias is a float32 tensor
            `(batch, 1, length, max_length)`. If `cache_update_index` is the Python integer 0, it
            is the output of `call`.

        Example:

        >>> import numpy as np
        >>> from roformer_tf.layers import AttentionMask
        >>> mask = AttentionMask("causal")
        >>> cache = mask.build_cache(1, max_length=4)
        >>> bias, cache = mask.call_with_cache(np.array([[1, 1]]), cache, 0)
        >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
        [[1, 0], [1, 1]]
        >>> bias, cache = mask.call_with_cache(np.array([[1]]), cache, 2)
        >>> (np.array(bias)[0, 0] == 0).astype(int).tolist()
        [[1, 1, 1, 0]]
        """
        cache, order, cache_update_index = dict(cache), None, as_index(cache_update_index)
        rows, length = ops.shape(padding_mask)
        hidden = ops.where(ops.cast(padding_mask, "bool"), 0.0, HIDDEN)
        cache["bias"] = ops.slice_update(cache["bias"], (0, cache_update_index), hidden)
        if self.masking == "causal":
            positions = ops.arange(ops.shape(cache["bias"])[1], dtype="int32")[None]
            order = ops.slice(positions, (0, cache_update_index), (1, length)), positions
        elif self.masking == "unilm":
            here = ops.cumsum(ops.cast(segment_ids, "int32"), axis=1)
            if not is_prefill(cache_update_index):
                before = ops.slice(
                    cache["order"], (0, ops.maximum(cache_update_index - 1, 0)), (rows, 1)
                )
                here = here + ops.where(cache_update_index > 0, before, 0)
            cache["order"] = ops.slice_update(cache["order"], (0, cache_update_index), here)
            order = here, cache["order"]
        if is_prefill(cache_update_index):
            return self(padding_mask, segment_ids), cache
        return dense_bias({"bias": cache["bias"][:, None, None, :], "order": order}), cache

    def compute_output_spec(self, padding_mask, segment_ids=None, document_ids=None):
        batch, length = padding_mask.shape
        bidirectional = self.masking == "bidirectional"
        if self.dense:
            queries = 1 if bidirectional and document_ids is None else length
            return keras.KerasTensor((batch, 1, queries, length), dtype="float32")
        parts = {"bias": keras.KerasTensor((batch, 1, 1, length), dtype="float32")}
        if document_ids is not None:
            parts["document"] = keras.KerasTensor((batch, length), dtype="int32")
        if not bidirectional:
            rows = 1 if self.masking == "causal" else batch
            parts["order"] = keras.KerasTensor((rows, length), dtype="int32")
        return parts

    def get_config(self):
        return {**super().get_config(), "masking": self.masking, "dense": self.dense}


def dense_bias(parts):
    """Returns the bias to add to the scores, from its parts.

    Args:
        parts: `"bias"`, `"order"` and `"document"` as `AttentionMask(dense=False)` returns them,
            the last two optional. They may be pairs: of the queries and of the keys.

    Returns:
        float32 tensor `(batch, 1, 1 or query, key)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers.attention_mask import AttentionMask, dense_bias
    >>> given = np.array([[1, 1, 0]]), None, np.array([[1, 2, 2]])
    >>> parts = AttentionMask("causal", dense=False)(*given)
    >>> bool(np.all(np.array(dense_bias(parts)) == np.array(AttentionMask("causal")(*given))))
    True
    """
    bias = parts["bias"]
    # the rules compare the positions or segment counts of two tokens, and earlier documents add the
    # same to both
    for name, sees in (("order", ops.greater_equal), ("document", ops.equal)):
        part = parts.get(name)
        if part is not None:
            queries, keys = part if isinstance(part, tuple) else (part, part)
            visible = sees(ops.expand_dims(queries, (1, 3)), ops.expand_dims(keys, (1, 2)))
            bias = ops.where(visible, bias, ops.minimum(bias, HIDDEN))
    return bias


def bias_of_masks(x, padding_mask=None, attention_mask=None, causal=False):
    """Returns the bias for masks as Keras has them, for a layer that is called with features.

    Args:
        x: Tensor `(batch, length, hidden_dim)`. If `padding_mask` is `None`, the mask that Keras
            propagates with `x` takes its place.
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens, or `None`.
        attention_mask: bool tensor `(batch, length, length)` or `(batch, 1 or num_heads, length,
            length)`, True where a query sees a key, or `None`.
        causal: bool. Whether a query sees only the keys up to its own position.

    Returns:
        `None` if every query sees every key. Otherwise a dictionary like that of
        `AttentionMask(dense=False)`, or with `attention_mask` a float32 tensor
        `(batch, 1 or num_heads, length, length)`.
    """
    if padding_mask is None:
        padding_mask = get_keras_mask(x)
    if padding_mask is None and attention_mask is None and not causal:
        return None
    batch, length = ops.shape(x)[:2]
    if padding_mask is None:
        parts = {"bias": ops.zeros((batch, 1, 1, length), "float32")}
    else:
        real = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
        parts = {"bias": ops.where(real, 0.0, HIDDEN)}
    if causal:
        parts["order"] = ops.arange(length, dtype="int32")[None]
    if attention_mask is None:
        return parts
    bias = dense_bias(parts)
    attention_mask = ops.cast(attention_mask, "bool")
    if len(attention_mask.shape) == 3:
        attention_mask = ops.expand_dims(attention_mask, 1)
    return ops.where(attention_mask, bias, ops.minimum(bias, HIDDEN))


def causal_bias(x, cache_update_index, max_length):
    """Returns the bias of a causal mask for new tokens and all positions of a cache.

    Args:
        x: Tensor `(batch, length, hidden_dim)` of the tokens at positions `cache_update_index`,
            `cache_update_index + 1`, …
        cache_update_index: int or scalar int tensor.
        max_length: int or scalar int tensor. Number of positions of the cache.
    """
    if is_prefill(cache_update_index):
        return bias_of_masks(x, causal=True)
    queries = cache_update_index + ops.arange(ops.shape(x)[1], dtype="int32")
    keys = ops.arange(max_length, dtype="int32")
    bias = ops.zeros((1, 1, 1, 1), "float32")
    return dense_bias({"bias": bias, "order": (queries[None], keys[None])})


def bias_at(bias, positions):
    """Returns the bias of the queries at some positions.

    Args:
        bias: A bias without a row for each query: what `AttentionMask(dense=False)` returns, a
            tensor `(batch, 1, 1, key)`, or `None`.
        positions: int tensor `(batch, count)`.

    Returns:
        What `dense_bias` takes, or `bias` itself.
    """
    if not isinstance(bias, dict):
        return bias

    def pair(part):
        if part.shape[0] == 1:  # the order of causal masks
            return ops.take(part[0], positions, axis=0), part
        return tokens_at(part[..., None], positions)[..., 0], part

    rules = {name: part for name, part in bias.items() if name != "bias" and part is not None}
    return {"bias": bias["bias"], **{name: pair(part) for name, part in rules.items()}}


def tokens_at(x, positions):
    """Returns the vectors `(batch, count, dim)` at positions of sequences.

    Args:
        x: Tensor `(batch, length, dim)` or `(batch, num_heads, length, head_dim)`.
        positions: int tensor `(batch, count)`, or `None` for all.
    """
    if positions is None:
        return x
    positions = ops.cast(positions, "int32")
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, positions, axis=len(x.shape) - 2, batch_dims=1)  # Keras transposes `x`
    if len(x.shape) == 4:
        positions = ops.expand_dims(positions, 1)
    return ops.take_along_axis(x, ops.expand_dims(positions, -1), axis=-2)


def with_mask_at(outputs, x, positions):
    """Returns the outputs at positions of `x`, with the mask there if Keras propagates one with `x`.

    Args:
        outputs: Tensor `(batch, count, dim)`.
        x: Tensor `(batch, length, hidden_dim)`.
        positions: int tensor `(batch, count)`, or `None` for all, of which Keras sets the mask.
    """
    mask = None if positions is None else get_keras_mask(x)
    if mask is not None:
        mask = ops.take_along_axis(mask, ops.cast(positions, "int32"), axis=1)
        set_keras_mask(outputs, mask)
    return outputs
