import keras
from keras import ops
from keras.src.backend.common.masking import set_keras_mask

from roformer_tf.layers.cache import in_plain_graph


@keras.saving.register_keras_serializable(package="roformer_tf")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """A `keras.layers.ReversibleEmbedding` whose gradient is dense.

    On TensorFlow, the gradient of a lookup has one row for each occurrence of an id. If an id
    occurs twice, Keras' Adam squares each row and sums the squares, where the formula squares the
    sum. A dense gradient adds the rows first, for every optimizer.

    Args:
        input_dim: int. Number of ids.
        output_dim: int. Size of the vectors.
        **kwargs: Arguments of `keras.layers.ReversibleEmbedding`.

    Call arguments:
        inputs: int tensor of ids, any shape; with `reverse=True` a float tensor `(...,
            output_dim)`.
        reverse: `True` multiplies by the transposed table: logits over the ids.

    Returns:
        Tensor `inputs.shape + (output_dim,)`, or `(..., input_dim)` with `reverse=True`, in the
        compute dtype.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import TokenEmbedding
    >>> layer = TokenEmbedding(10, 4)
    >>> vectors = layer(np.array([[1, 2, 2]]))
    >>> tuple(vectors.shape), tuple(layer(vectors, reverse=True).shape)
    ((1, 3, 4), (1, 3, 10))
    """

    def __init__(self, *args, reverse_dtype=None, **kwargs):
        super().__init__(*args, **kwargs)
        # By itself Keras multiplies by the float32 table: twice the work of bfloat16 in a model's
        # largest product.
        self._given_reverse_dtype = reverse_dtype
        self.reverse_dtype = reverse_dtype or self.compute_dtype

    def get_config(self):
        return {**super().get_config(), "reverse_dtype": self._given_reverse_dtype}

    def call(self, inputs, reverse=False):
        if reverse:
            if self._is_step(inputs):
                return self._logits_of_step(inputs)
            return super().call(inputs, reverse=True)
        # The gradient of a reshape is dense; the reshape itself costs nothing.
        table = ops.reshape(self.embeddings, (self.input_dim, self.output_dim))
        vectors = ops.cast(ops.take(table, ops.cast(inputs, "int32"), axis=0), self.compute_dtype)
        if self.mask_zero:
            set_keras_mask(vectors, ops.not_equal(inputs, 0))
        return vectors

    def _is_step(self, inputs):
        """Returns whether these are single tokens of a generation, whose logits can be faster."""
        plain = self.tie_weights and self.logit_soft_cap is None and self.quantization_mode is None
        one_token = len(inputs.shape) == 3 and inputs.shape[1] == 1
        return plain and one_token and self.reverse_dtype == "float32" and in_plain_graph()

    def _logits_of_step(self, inputs):
        """Computes the same product; 8 rows take two thirds of the time on a CPU."""
        import tensorflow as tf

        rows = tf.reshape(tf.cast(inputs, "float32"), (-1, self.output_dim))
        table = tf.convert_to_tensor(self.embeddings)
        logits = tf.cond(
            tf.shape(rows)[0] > 3,
            lambda: tf.matmul(rows[None], table[None], transpose_b=True)[0],
            lambda: tf.matmul(rows, table, transpose_b=True),
        )
        return logits[:, None]

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras raises an error for subclasses, as they may compute something else
        super().quantize(mode, type_check=False, config=config)
