import keras
from keras import ops

from roformer_tf.activations import activation_name, get_activation
from roformer_tf.layers.config import arguments_of
from roformer_tf.layers.flat_dense import flatten, make_dense


@keras.saving.register_keras_serializable(package="roformer_tf")
class FeedForward(keras.layers.Layer):
    """Position-wise feed-forward network: dense, activation, dense.

    Args:
        hidden_dim: int. Width of input and output.
        intermediate_dim: int. Width between the two.
        activation: Name as in `get_activation`.
        use_bias: bool. Whether the dense layers have biases (v1 yes, v2 no).
        kernel_initializer: For both dense layers.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import FeedForward
    >>> tuple(FeedForward(8, 32)(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)

    Reference: `FeedForward` of bert4keras' `layers.py`.
    """

    def __init__(
        self,
        hidden_dim,
        intermediate_dim,
        activation="gelu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.activation_name = activation_name(activation)
        self.activation = get_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.intermediate_dense = make_dense(
            self, intermediate_dim, "intermediate_dense", activation=self.activation
        )
        self.output_dense = make_dense(self, hidden_dim, "output_dense")

    def build(self, x_shape):
        self.intermediate_dense.build(x_shape)
        self.output_dense.build((*x_shape[:-1], self.intermediate_dim))

    def call(self, x):
        outputs = self.output_dense(self.intermediate_dense(flatten(x)))
        return ops.reshape(outputs, (*ops.shape(x)[:-1], self.hidden_dim))

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.hidden_dim)

    def get_config(self):
        arguments = arguments_of(self, FeedForward, activation=self.activation_name)
        return {**super().get_config(), **arguments}
