import keras
from keras import ops
from keras.src.backend.common.masking import get_keras_mask

from roformer_tf.layers.flat_dense import make_dense
from roformer_tf.layers.global_pointer import GlobalPointer


@keras.saving.register_keras_serializable(package="roformer_tf")
class EfficientGlobalPointer(GlobalPointer):
    """`GlobalPointer` with few weights for each type.

    One pair of queries and keys, shared by all types, scores whether a span is an entity at all. A
    bias for the start and one for the end score its type: s_h(m, n) = (R_m q_m) · (R_n k_n) /
    sqrt(d) + a_mh + b_nh. A further type costs 4 `head_dim` weights, and not 2 `head_dim` for each
    feature of the input. Arguments, inputs and outputs are those of `GlobalPointer`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import EfficientGlobalPointer
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    >>> layer = EfficientGlobalPointer(num_heads=3, head_dim=8)
    >>> tuple(layer(x).shape), layer.count_params()
    ((2, 3, 5, 5), 374)

    Reference: https://kexue.fm/archives/8877; `EfficientGlobalPointer` of bert4keras 0.11.5.
    """

    def build(self, x_shape, padding_mask_shape=None):
        self.p_dense = make_dense(self, 2 * self.head_dim, "p_dense")
        self.p_dense.build(x_shape)
        self.q_dense = make_dense(self, 2 * self.num_heads, "q_dense")
        self.q_dense.build((*x_shape[:-1], 2 * self.head_dim))

    def call(self, x, padding_mask=None):
        if padding_mask is None:
            padding_mask = get_keras_mask(x)
        x = self.p_dense(x)
        scores = ops.expand_dims(self.products(x[..., ::2], x[..., 1::2]), 1)
        bias = ops.transpose(ops.cast(self.q_dense(x), "float32"), (0, 2, 1)) / 2
        ends, starts = bias[:, ::2], bias[:, 1::2]
        scores = scores + ops.expand_dims(ends, 2) + ops.expand_dims(starts, 3)
        return self.mask_scores(scores, padding_mask)
