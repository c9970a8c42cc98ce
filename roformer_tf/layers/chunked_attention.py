import functools

from keras import ops

from roformer_tf.layers.attention_mask import HIDDEN, dense_bias
from roformer_tf.layers.cache import in_plain_graph
from roformer_tf.layers.dropout import block_seeds, stateless_dropout
from roformer_tf.portable import NO_INLINE, custom_gradient

BLOCK_SIZE = 256

# Bias of the padding of the last block: no weight at all, even if all keys of a query are hidden.
_OUTSIDE = -1e30


def chunked_attention(
    query, key, value, attention_bias=None, dropout=0.0, seed=None, block_size=BLOCK_SIZE
):
    """Exact softmax attention in memory that grows with the length, not with its square.

    Computes the scores of one block of queries and one block of keys at a time. For each query it
    keeps the largest score so far and the sum of the exponentials, and rescales the sums when a
    larger score comes. The backward pass computes each block of weights again from the output and
    these two numbers.

    Outputs and gradients are those of the plain computation, up to float32 rounding. A query that
    sees no key gets the mean of all values. Blocks in which `order` hides all keys are skipped.
    There are no second derivatives.

    Args:
        query: Tensor `(batch, num_heads, length, head_dim)`, already scaled.
        key, value: tensors of the shape of `query`.
        attention_bias: `None`; or a dictionary as `AttentionMask(dense=False)` returns it; or a
            float32 tensor that broadcasts to `(batch, num_heads, 1, length)`, the same for all
            queries. Values below -1e9 count as -1e9. It gets no gradient.
        dropout: float. Rate on the attention weights.
        seed: integer tensor `(2,)` that decides what is dropped; needed if `dropout` is not 0.
        block_size: int. Number of queries and of keys in a block.

    Returns:
        Tensor of the shape and dtype of `query`. Products are taken in this dtype, the softmax and
        all sums in float32.

    Raises:
        NotImplementedError: On a second derivative.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers.chunked_attention import chunked_attention
    >>> x = np.random.default_rng(0).normal(size=(1, 2, 10, 4)).astype("float32")
    >>> weights = np.exp(x @ x.swapaxes(-1, -2))
    >>> expected = weights @ x / weights.sum(-1, keepdims=True)
    >>> output = chunked_attention(x, x, x, block_size=4)
    >>> bool(np.abs(np.array(output) - expected).max() < 1e-5)
    True

    Reference: FlashAttention, arXiv 2205.14135, algorithms 1, 2 and 4; Rabe and Staats, arXiv
    2112.05682.
    """
    if not isinstance(attention_bias, dict):
        attention_bias = {"bias": attention_bias}
    if not dropout:
        seed = None
    masks = {
        name: ops.stop_gradient(ops.convert_to_tensor(x))
        for name, x in attention_bias.items()
        if x is not None
    }

    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    if isinstance(query.shape[2], int):
        block_size = min(block_size, query.shape[2])

    @custom_gradient
    def attend(query, key, value):
        inputs = tuple(map(ops.stop_gradient, (query, key, value)))
        attended, known = _traced_once(_attended)(inputs, masks, seed, dropout, block_size)

        def gradients(upstream):
            return _once(
                lambda upstream: _traced_once(_gradients)(known, upstream, dropout, block_size),
                upstream,
            )

        return attended, gradients

    return attend(query, key, value)


def _once(function, x):
    """Returns `function(x)`, where `function` is a gradient; its own gradient is an error."""

    @ops.custom_gradient
    def guarded(x):
        def refuse(*args, upstream=None):
            raise NotImplementedError(
                "Attention in blocks has a gradient, but no second derivative. For a gradient "
                "penalty and the like set `chunked_above = None` on the attention layers, or on "
                "`SelfAttention` before the model is called."
            )

        return function(x), refuse

    return guarded(x)


def _traced_once(function):
    """Returns the function; on TensorFlow as one graph that all layers of a model call.

    In a model for inputs of any length this is a branch of each layer. Tracing it in each of them
    would double the time of the first step of `fit`.
    """
    return _graph_function(function) if in_plain_graph() else function


@functools.cache
def _graph_function(function):
    import tensorflow as tf

    return tf.function(function, autograph=False, experimental_attributes=NO_INLINE)


def _attended(inputs, masks, seed, dropout, block_size):
    """Returns the output, and what the backward pass needs."""
    tensors = _in_blocks(*inputs, masks, seed, block_size)
    output, largest, total = _forward(_Blocks(tensors, dropout))
    return _join(output, inputs[0]), (tensors, output, largest, total)


def _gradients(known, upstream, dropout, block_size):
    tensors, *known = known
    parts = _backward(_Blocks(tensors, dropout), *known, _split(upstream, 2, block_size))
    return tuple(ops.cast(_join(x, upstream), upstream.dtype) for x in parts)


def _in_blocks(query, key, value, masks, seed, size):
    """Returns a dictionary of the inputs in blocks, stacked along a new first axis.

    The last block is padded with zeros, which `bias` hides.
    """
    tensors = {"query": query, "key": key, "value": value}
    tensors = {name: _split(x, 2, size) for name, x in tensors.items()}
    bias = masks.get("bias")
    if bias is None:
        bias = _zeros(_transposed(query[:1, :1, :, :1]))
    else:
        bias = ops.maximum(bias, HIDDEN)  # padding is below it
    tensors["bias"] = _split(bias, 3, size, _OUTSIDE)
    # padded positions come after all others in the order
    for name, fill in (("order", 2**31 - 1), ("document", 0)):
        if name in masks:
            tensors[name] = _split(masks[name], 1, size, fill)
    if seed is not None:
        # each block of weights draws the same when it is computed again
        tensors["seeds"] = block_seeds(seed, ops.shape(tensors["query"])[0])
    return tensors


class _Blocks:
    """Computes a block of queries with a block of keys, from the tensors of `_in_blocks`."""

    def __init__(self, tensors, dropout):
        self.query, self.key, self.value = (tensors[name] for name in ("query", "key", "value"))
        self.bias, self.seeds = tensors["bias"], tensors.get("seeds")
        self.rows = {name: tensors[name] for name in ("order", "document") if name in tensors}
        self.dropout = dropout

    def scores(self, i, j):
        """Returns the float32 scores `(batch, num_heads, query, key)` of queries i and keys j."""
        pairs = {name: (row[i], row[j]) for name, row in self.rows.items()}
        scores = _product(self.query[i], _transposed(self.key[j]))
        return scores + dense_bias({"bias": self.bias[j], **pairs})

    def dropped(self, weights, i, j):
        if self.dropout:
            return stateless_dropout(weights, self.dropout, self.seeds[i, j])
        return weights

    def wanted(self, i, j, largest):
        """Returns whether queries i need keys j; one that sees no key needs all, for the mean."""
        if "order" not in self.rows:
            return True
        order = self.rows["order"]
        sees = ops.any(order[j][:, 0] <= order[i][:, -1])
        return ops.logical_or(sees, ops.any(largest < HIDDEN / 2))


def _forward(blocks):
    """Returns blocks of outputs, and each query's largest score and sum of exponentials.

    FlashAttention keeps only `largest + log(total)`. Near -1e9, where all scores are hidden, the
    logarithm would be lost in rounding, and with it the weights of 1 / length.
    """
    number = _zeros(blocks.query[0][..., :1])  # one for each query
    start = _zeros(blocks.value[0]), number + _OUTSIDE, number

    def of_queries(_, i):
        def more(j, output, largest, total):
            count = ops.shape(blocks.key)[0]
            wanted = blocks.wanted(i, ops.minimum(j, count - 1), largest)
            return ops.logical_and(j < count, wanted)

        def with_keys(j, output, largest, total):
            scores = blocks.scores(i, j)
            now = ops.maximum(largest, ops.max(scores, axis=-1, keepdims=True))
            weights, shrink = ops.exp(scores - now), ops.exp(largest - now)
            total = total * shrink + ops.sum(weights, axis=-1, keepdims=True)
            weights = ops.cast(blocks.dropped(weights, i, j), blocks.value.dtype)
            output = output * shrink + _product(weights, blocks.value[j])
            return j + 1, output, now, total

        _, output, largest, total = ops.while_loop(more, with_keys, (0, *start))
        result = ops.cast(output / total, blocks.value.dtype), largest, total
        return result, result  # a state that nothing reads, and what is stacked

    unread = ops.zeros_like(blocks.value[0]), number, number
    return ops.scan(of_queries, unread, ops.arange(ops.shape(blocks.query)[0]))[1]


def _backward(blocks, output, largest, total, upstream):
    """Returns blocks of the gradients by query, key and value, in float32.

    The weights P, after dropout Q = P * kept, give O = Q V. With dQ = dO V^T the gradient by the
    scores is P * (dQ * kept - D), where D, the sum of Q * dQ over a row, is the sum of O * dO.
    """
    mean = ops.cast(output, "float32") * ops.cast(upstream, "float32")
    mean = ops.sum(mean, axis=-1, keepdims=True)
    zeros = _zeros(blocks.query[0])

    def of_queries(i, sums):
        query, d_output = blocks.query[i], upstream[i]
        d_queries, d_keys, d_values = sums

        def with_keys(state, j):
            def add():
                weights = ops.exp(blocks.scores(i, j) - largest[i]) / total[i]
                kept = blocks.dropped(ops.ones_like(weights), i, j)
                dropped = ops.cast(weights * kept, query.dtype)
                d_dropped = _product(d_output, _transposed(blocks.value[j]))
                d_scores = weights * (d_dropped * kept - mean[i])
                d_scores = ops.cast(d_scores, query.dtype)
                return (
                    d_query + _product(d_scores, blocks.key[j]),
                    _product(_transposed(d_scores), query),
                    _product(_transposed(dropped), d_output),
                )

            d_query, _ = state
            wanted = blocks.wanted(i, j, largest[i])
            if wanted is True:
                d_query, d_key, d_value = add()
            else:
                d_query, d_key, d_value = ops.cond(wanted, add, lambda: (d_query, zeros, zeros))
            # TensorFlow's `scan` wants a state of the structure that is stacked, so the state has a
            # second part, which nothing reads
            return (d_query, d_key), (d_key, d_value)

        keys = ops.arange(ops.shape(blocks.key)[0])
        # `d_queries[i]` is 0 so far. Reading it makes TensorFlow finish the queries before: several
        # in parallel would need the memory of all.
        (d_query, _), (d_key, d_value) = ops.scan(with_keys, (d_queries[i], zeros), keys)
        here = (ops.arange(ops.shape(blocks.query)[0]) == i)[:, None, None, None, None]
        return ops.where(here, d_query, d_queries), d_keys + d_key, d_values + d_value

    count = ops.shape(blocks.query)[0]
    return ops.fori_loop(0, count, of_queries, (_zeros(blocks.query),) * 3)


def _split(x, axis, size, fill=0):
    """Splits an axis into blocks, stacked along a new first axis; pads the last one."""
    return ops.moveaxis(in_chunks(x, size, axis, fill), axis, 0)


def _join(blocks, like):
    """Inverts `_split` along axis 2, to the length of another tensor."""
    return out_of_chunks(ops.moveaxis(blocks, 0, 2), ops.shape(like)[2])


def in_chunks(x, size, axis=2, fill=0.0):
    """Splits an axis into (chunks, `size`), padded at the end."""
    shape = ops.shape(x)
    missing = (size - shape[axis] % size) % size  # ONNX has another `%` of negative numbers
    if not isinstance(missing, int) or missing:
        widths = [[0, 0] for _ in shape]
        widths[axis] = [0, missing]
        x = ops.pad(x, widths, constant_values=fill)
    return ops.reshape(x, (*shape[:axis], -1, size, *shape[axis + 1 :]))


def out_of_chunks(x, length):
    """Inverts `in_chunks` along axis 2."""
    shape = ops.shape(x)
    x = ops.reshape(x, (*shape[:2], -1, *shape[4:]))
    whole = isinstance(length, int) and x.shape[2] == length
    return x if whole else x[:, :, :length]


def _transposed(x):
    return ops.swapaxes(x, -1, -2)


def _zeros(x):
    """Returns float32 zeros of the shape of `x`."""
    return ops.zeros_like(x, dtype="float32")


def _product(x, y):
    """Multiplies in the dtype of `x` and `y`; returns float32, to be added up."""
    return ops.cast(ops.matmul(x, y), "float32")
