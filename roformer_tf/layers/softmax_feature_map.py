import keras
from keras import ops

from roformer_tf.layers.feature_map import FeatureMap, largest_of, no_scale, scaled_exp


@keras.saving.register_keras_serializable(package="roformer_tf")
class SoftmaxFeatureMap(FeatureMap):
    """phi(q) = softmax(q) over the features of a query, phi(k) = exp(k), as in the RoFormer paper.

    The original by Shen et al. also divides each feature of the keys by its sum over all keys:
    `normalize_keys=True`. This weights the keys differently and needs the whole sequence.

    Args:
        normalize_keys: bool. Whether each feature of the keys is a softmax over the positions; not
            for causal attention.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments, returns: see `FeatureMap`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import SoftmaxFeatureMap
    >>> x = np.log(np.array([[[[1.0, 3.0], [1.0, 1.0]]]], "float32"))
    >>> query, key, log_scale = SoftmaxFeatureMap()(x, x)
    >>> np.array(query[0, 0]).round(2).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    >>> np.array(key[0, 0] * np.exp(log_scale)[0, 0, :, None]).round(2).tolist()
    [[1.0, 3.0], [1.0, 1.0]]

    Reference: section 3.3 of arXiv 2104.09864; Shen et al., Efficient Attention, arXiv 1812.01243.
    """

    def __init__(self, normalize_keys=False, **kwargs):
        super().__init__(**kwargs)
        self.normalize_keys = normalize_keys
        self.reads_all_keys = normalize_keys

    def call(self, query, key, key_bias=None, training=None):
        query = scaled_exp(query)[0]
        query = query / ops.sum(query, axis=-1, keepdims=True)
        if not self.normalize_keys:
            return query, *scaled_exp(key)
        if key_bias is not None:
            key = key + ops.expand_dims(key_bias, -1)
        key = ops.exp(key - largest_of(key, axis=-2, keepdims=True))
        return query, key / ops.sum(key, axis=-2, keepdims=True), no_scale(key)
