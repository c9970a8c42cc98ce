"""Key/value caches: reading, writing, and how the current graph may write them."""

import keras
from keras import ops


def write(cache, update, cache_update_index):
    """Writes new entries to the cache, from position `cache_update_index` on.

    Args:
        cache: Tensor `(batch, num_heads, max_length, head_dim)`.
        update: Tensor `(batch, num_heads, length, head_dim)`.
        cache_update_index: integer or scalar integer tensor.

    Returns:
        Tensor of the shape and dtype of `cache`. TensorFlow reuses its memory if nothing else reads
        the old cache, so the cost of a step does not grow with the size of the cache.

    Raises:
        ValueError: If the entries do not fit and `cache_update_index` is an integer.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers.cache import write
    >>> cache, update = np.zeros((1, 1, 4, 1), "float32"), np.ones((1, 1, 2, 1), "float32")
    >>> cache = write(cache, update, cache_update_index=1)
    >>> np.array(cache)[0, 0, :, 0].tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    cache = ops.convert_to_tensor(cache)
    update = ops.cast(update, cache.dtype)
    check_room(cache.shape[2], update.shape[2], cache_update_index)
    if in_plain_graph():
        import tensorflow as tf

        # `ops.slice_update` and `tf.tensor_scatter_nd_update` copy the whole cache, except in XLA.
        # Writing to a matrix takes half the time.
        batch, num_heads, max_length, head_dim = ops.shape(cache)
        rows = batch * num_heads
        new = tf.reshape(update, (rows, ops.shape(update)[2] * head_dim))
        start = cache_update_index * head_dim
        written = tf.raw_ops.TensorStridedSliceUpdate(
            input=tf.reshape(cache, (rows, max_length * head_dim)),
            begin=tf.stack([0, start]),
            end=tf.stack([0, start + tf.shape(new)[1]]),
            strides=[1, 1],
            value=new,
            begin_mask=0b01,  # all rows
            end_mask=0b01,
        )
        return tf.reshape(written, (batch, num_heads, max_length, head_dim))
    return ops.slice_update(cache, (0, 0, cache_update_index, 0), update)


def check_room(max_length, count, cache_update_index):
    """Raises `ValueError` if `count` more tokens do not fit, as far as the numbers are known."""
    numbers = max_length, count, cache_update_index
    if all(isinstance(x, int) for x in numbers) and cache_update_index + count > max_length:
        raise ValueError(
            f"The cache holds {max_length} tokens; pass a larger `max_length` to `build_cache`. "
            f"Received: cache_update_index={cache_update_index} and {count} more tokens"
        )


def read(x, cache_update_index, length):
    """Reads `length` entries of a `(batch, num_heads, max_length, head_dim)` cache."""
    batch, num_heads, _, head_dim = ops.shape(x)
    return ops.slice(x, (0, 0, cache_update_index, 0), (batch, num_heads, length, head_dim))


def as_index(number):
    """Returns an integer of any dtype as int32, the dtype of positions, and other numbers as given.

    TensorFlow adds, stacks and slices by integers of one dtype only.
    """
    dtype = getattr(number, "dtype", None)
    if dtype is None or "int" not in keras.backend.standardize_dtype(dtype):
        return number
    return ops.cast(number, "int32")


def is_prefill(cache_update_index):
    """Returns whether `cache_update_index` is the Python integer 0: there are no earlier tokens."""
    return isinstance(cache_update_index, int) and cache_update_index == 0


def has_fixed_shapes():
    """Returns whether the current trace needs static shapes, as XLA and JAX do."""
    return keras.config.backend() == "jax" or _in_xla()


def in_plain_graph():
    """Returns whether TensorFlow runs this itself, without XLA."""
    return keras.config.backend() == "tensorflow" and not _in_xla()


def _in_xla():
    """Returns whether a TensorFlow function with `jit_compile=True` is being traced."""
    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
