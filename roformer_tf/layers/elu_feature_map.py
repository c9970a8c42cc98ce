import keras
from keras import ops

from roformer_tf.layers.feature_map import FeatureMap, no_scale


@keras.saving.register_keras_serializable(package="roformer_tf")
class EluFeatureMap(FeatureMap):
    """phi(x) = elu(x) + 1 for queries and keys: x + 1 above 0, exp(x) below.

    Args:
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments, returns: see `FeatureMap`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import EluFeatureMap
    >>> x = np.array([[[[-1.0, 0.0, 2.0]]]], "float32")
    >>> query, key, log_scale = EluFeatureMap()(x, x)
    >>> np.array(query).round(4).tolist()
    [[[[0.367900013923645, 1.0, 3.0]]]]

    Reference: Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equation 7.
    """

    def call(self, query, key, key_bias=None, training=None):
        return _elu_plus_one(query), _elu_plus_one(key), no_scale(key)


def _elu_plus_one(x):
    # not `elu(x) + 1`, which far below 0 is the difference of two numbers near 1
    return ops.where(x > 0, x + 1, ops.exp(ops.minimum(x, 0.0)))
