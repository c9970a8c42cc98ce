import keras


@keras.saving.register_keras_serializable(package="roformer_tf")
class Pooler(keras.layers.Layer):
    """Applies a dense layer to the vector of the first token, [CLS].

    Args:
        activation: `"tanh"` (BERT), or `"linear"` (RoFormer-Sim).
        kernel_initializer: initializer of the dense layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.

    Returns:
        Tensor `(batch, hidden_dim)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import Pooler
    >>> tuple(Pooler()(np.ones((2, 5, 8), "float32")).shape)
    (2, 8)

    Reference: `Pooler` and `Pooler-Dense` in `apply_final_layers` of bert4keras' `models.py`.
    """

    def __init__(self, activation="tanh", kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        self.dense = keras.layers.Dense(
            x_shape[-1],
            activation=self.activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build((x_shape[0], x_shape[-1]))

    def compute_mask(self, inputs, previous_mask):
        return None  # there is no length axis left

    def call(self, x):
        return self.dense(x[:, 0])

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
