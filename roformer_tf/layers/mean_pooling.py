import keras
from keras import ops
from keras.src.backend.common.masking import get_keras_mask

from roformer_tf.layers.config import own_arguments, shape_of_spec


@keras.saving.register_keras_serializable(package="roformer_tf")
class MeanPooling(keras.layers.Layer):
    """Averages the real tokens of each sequence.

    `keras.layers.GlobalAveragePooling1D` sums in the compute dtype and returns NaN for a sequence
    without real tokens. This layer sums in float32 and returns zeros.

    Args:
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, features)`.
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Defaults to the mask
            that Keras propagates with `x`.

    Returns:
        Tensor `(batch, features)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import MeanPooling
    >>> x = np.float32([[[2.0], [4.0], [9.0]]])
    >>> np.array(MeanPooling()(x, np.array([[1, 1, 0]]))).tolist()
    [[3.0]]

    Reference: `GlobalAveragePooling1D` of bert4keras' `layers.py`, as used by `finetune_scm.py`.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def get_config(self):
        return {**own_arguments(self, MeanPooling), **super().get_config()}

    def compute_mask(self, inputs, previous_mask):
        return None  # there is no length axis left

    def call(self, x, padding_mask=None):
        if padding_mask is None:
            padding_mask = get_keras_mask(x)
        if padding_mask is None:
            return ops.cast(ops.mean(ops.cast(x, "float32"), axis=1), self.compute_dtype)
        weights = ops.expand_dims(ops.cast(padding_mask, "float32"), -1)
        total = ops.sum(ops.cast(x, "float32") * weights, axis=1)
        mean = total / ops.maximum(ops.sum(weights, axis=1), 1.0)
        return ops.cast(mean, self.compute_dtype)

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor((x.shape[0], x.shape[-1]), self.compute_dtype)

    compute_output_shape = shape_of_spec
