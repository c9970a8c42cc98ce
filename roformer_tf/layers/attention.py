import functools

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.cache import in_plain_graph
from roformer_tf.layers.dropout import Dropout
from roformer_tf.layers.flat_dense import FlatDense
from roformer_tf.portable import is_portable


class Attention(keras.layers.Layer):
    """Base class of `SelfAttention` and `CrossAttention`: heads, softmax, output projection.

    Subclasses create their projections with `make_dense`, and `output_dense` as the last one.
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

    def make_dense(self, name, parts=1):
        """Returns a projection to `parts` vectors of all heads."""
        return FlatDense(
            parts * self.num_heads * self.head_dim,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

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
        if attention_bias is not None:
            scores = scores + ops.cast(attention_bias, scores.dtype)
        if scores.shape[-1] == 1:  # a single token; Keras warns of a softmax over one number
            weights = ops.ones_like(scores)
        else:
            weights = ops.softmax(scores, axis=-1)
        weights = self.dropout_layer(ops.cast(weights, value.dtype), training=training)
        return ops.matmul(weights, value), weights

    def merge(self, output, shape=None):
        """Merges the heads of `(batch, num_heads, length, head_dim)` and projects them.

        Pass `shape` if the result has another `(batch, length)`.
        """
        if shape is None:
            shape = ops.shape(output)[0], ops.shape(output)[2]
        output = ops.transpose(output, (0, 2, 1, 3))
        return self.output_dense(ops.reshape(output, (*shape, self.num_heads * self.head_dim)))

    def compute_output_spec(self, x, *args, **kwargs):
        shape = (*x.shape[:-1], self.num_heads * self.head_dim)
        return keras.KerasTensor(shape, self.compute_dtype)


def has_narrow_softmax(dtype):
    """Returns whether a softmax of scores in `dtype` sums in float32 by itself, as oneDNN's does.

    Scores then need no copy in float32, which takes longer than the products of a long text. For
    inference only: the gradient of such a softmax sums in `dtype`.

    Example:

    >>> from roformer_tf.layers.attention import has_narrow_softmax
    >>> has_narrow_softmax("float32")
    False
    """
    if dtype != "bfloat16" or is_portable() or not in_plain_graph():
        return False
    return _bfloat16_softmax_sums_in_float32()


@functools.cache
def _bfloat16_softmax_sums_in_float32():
    """Finds out by a long row, as TensorFlow's own kernels sum in bfloat16."""
    import tensorflow as tf

    if tf.config.list_logical_devices("GPU"):
        return False
    with tf.init_scope():
        row = tf.cast(np.linspace(-4, 4, 4096)[None], tf.bfloat16)
        wide = tf.nn.softmax(tf.cast(row, tf.float32))
        error = tf.abs(tf.cast(tf.nn.softmax(row), tf.float32) - wide)
        return bool(tf.reduce_all(error <= 2**-8 * wide))  # rounded once
