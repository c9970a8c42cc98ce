import keras
from keras import ops

from roformer_tf.layers.config import own_arguments


@keras.saving.register_keras_serializable(package="roformer_tf")
class FeatureMap(keras.layers.Layer):
    """Base class of feature maps, which replace the softmax: sim(q, k) = phi(q) . phi(k).

    Some features grow like exp(k). To prevent overflow, a map may divide the features of each key
    by a factor and return its logarithm as the third result:
    sim(q, k) = phi(q) . phi(k) exp(log_scale). Factors of a query cancel between numerator and
    denominator, so maps leave them out.

    Attributes:
        num_unrotated: int. Number of features, the first ones, that a position scheme leaves alone.
        rotate_inputs: bool. Whether a position scheme rotates queries and keys *before* the map,
            in numerator and denominator, instead of the features in the numerator only.
        reads_all_keys: bool. Whether the features of a key depend on later keys, so that the map
            cannot be causal.
        epsilon: float. The smallest denominator, for rounding and for queries that see no keys.

    Call arguments:
        query: float32 tensor `(batch, num_heads, length, head_dim)`.
        key: float32 tensor `(batch, num_heads, length, head_dim)`.
        key_bias: float32 tensor `(batch, 1, length)`, 0 for visible keys, -1e9 for hidden ones, or
            `None`.

    Returns:
        Tuple of the features of the queries, those of the keys, `(batch, num_heads, length,
        feature_dim)` both, and `log_scale`, which broadcasts to `(batch, num_heads, length)`.

    Example: a custom map.

    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.layers import FeatureMap, LinearAttention
    >>> class ReluFeatureMap(FeatureMap):
    ...     def call(self, query, key, key_bias=None, training=None):
    ...         return ops.relu(query) + 0.1, ops.relu(key) + 0.1, ops.zeros((1, 1, 1))
    >>> layer = LinearAttention(num_heads=2, head_dim=4, feature_map=ReluFeatureMap(), causal=True)
    >>> tuple(layer(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)

    Reference: equation 18 of arXiv 2104.09864.
    """

    num_unrotated = 0
    rotate_inputs = False
    reads_all_keys = False
    epsilon = 1e-18  # its square, which gradients divide by, is still a float32

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)  # float32 under every dtype policy

    def get_config(self):
        return {**own_arguments(self, FeatureMap), **super().get_config()}

    def build(self, query_shape, key_shape):
        self.built = True

    def feature_dim(self, head_dim):
        """Returns the number of features of a head of size `head_dim`."""
        return head_dim

    def rotated_dim(self, head_dim):
        """Returns the size of the vectors that a position scheme rotates: its `head_dim`."""
        if self.rotate_inputs:
            return head_dim
        return self.feature_dim(head_dim) - self.num_unrotated


def check_no_scores(return_attention_scores, feature_map):
    """Raises `ValueError` if scores are asked of linear attention, which has none."""
    if return_attention_scores and feature_map is not None:
        raise ValueError(
            "Linear attention computes no scores. Received: return_attention_scores=True "
            f"and feature_map={type(feature_map).__name__}"
        )


def no_scale(key):
    """Returns the `log_scale` of maps that need none."""
    return ops.zeros_like(key[:1, :1, :, 0])


def scaled_exp(x):
    """Returns `exp(x)` divided by its largest feature, and the logarithm of the latter."""
    log_scale = largest_of(x, axis=-1)
    return ops.exp(x - ops.expand_dims(log_scale, -1)), log_scale


def largest_of(x, axis, keepdims=False):
    """Returns the largest numbers along an axis, without a gradient; of no numbers, minus infinity."""
    return ops.stop_gradient(ops.max(x, axis=axis, keepdims=keepdims, initial=float("-inf")))
