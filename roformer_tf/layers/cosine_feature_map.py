import keras
from keras import ops

from roformer_tf.layers.feature_map import FeatureMap, no_scale


@keras.saving.register_keras_serializable(package="roformer_tf")
class CosineFeatureMap(FeatureMap):
    """sim(q, k) = 1 + cos(q, k): the features are a 1 and the vector of length 1.

    A position scheme rotates the vector and leaves the 1 alone.

    Args:
        rotate_inputs: bool. Whether the vector is rotated in the denominator too. Since RoPE keeps
            lengths, the weights are then between 0 and 2 as before, and sum to 1: "without changing
            its probabilistic meaning".
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments, returns: see `FeatureMap`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import CosineFeatureMap
    >>> x = np.array([[[[3.0, 4.0]]]], "float32")
    >>> query, key, log_scale = CosineFeatureMap()(x, x)
    >>> np.array(query).round(4).tolist()
    [[[[1.0, 0.6000000238418579, 0.800000011920929]]]]

    Reference: the section on linear attention of the RoPE article of RoFormer's first author,
    https://kexue.fm/archives/8265; with the similarity, https://kexue.fm/archives/7546.
    """

    num_unrotated = 1
    epsilon = 1e-6  # 1 + cos is 0 for opposite vectors, and float32 rounds it to some 1e-7

    def __init__(self, rotate_inputs=False, **kwargs):
        super().__init__(**kwargs)
        self.rotate_inputs = rotate_inputs

    def feature_dim(self, head_dim):
        return 1 + head_dim

    def call(self, query, key, key_bias=None, training=None):
        return _one_and_direction(query), _one_and_direction(key), no_scale(key)


def _one_and_direction(x):
    # 1e-12 is under the root, since a root has no gradient at 0
    length = ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + 1e-12)
    return ops.concatenate([ops.ones_like(length), x / length], axis=-1)
