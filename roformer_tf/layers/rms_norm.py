import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class RMSNorm(keras.layers.Layer):
    """Weightless root-mean-square norm of RoFormer v2: `x / sqrt(mean(x^2) + epsilon)`.

    `keras.layers.RMSNormalization` always has a scale; the v2 checkpoints have none. The mean and
    the division are computed in float32 whatever the compute dtype.

    Args:
        epsilon: float. Added to the mean square. bert4keras uses 1e-7.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(..., features)`.

    Returns:
        Tensor of the same shape, in the compute dtype.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RMSNorm
    >>> print(np.array(RMSNorm()(np.float32([[3.0, 4.0]]))).round(4))
    [[0.8485 1.1314]]

    Reference: `LayerNormalization(zero_mean=False, scale=False, offset=False)` of bert4keras.
    """

    def __init__(self, epsilon=1e-7, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, input_shape):
        self.built = True

    def call(self, x):
        x = ops.cast(x, "float32")
        mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return ops.cast(x * ops.rsqrt(mean_square + self.epsilon), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
