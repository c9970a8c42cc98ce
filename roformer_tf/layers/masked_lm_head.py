import keras
from keras import ops

from roformer_tf.activations import activation_name, get_activation
from roformer_tf.layers.attention_mask import tokens_at
from roformer_tf.layers.config import arguments_of, deserialize_parts, shape_of_spec
from roformer_tf.layers.dropout import Dropout
from roformer_tf.layers.flat_dense import FlatDense
from roformer_tf.layers.rms_norm import make_norm


@keras.saving.register_keras_serializable(package="roformer_tf")
class MaskedLMHead(keras.layers.Layer):
    """Computes logits over the vocabulary from hidden states, tied to the token embedding.

    v1: dense to `embedding_dim`, activation, layer norm, transposed embedding, bias. v2
    (`transform=False`): a bias-free map to `embedding_dim` where the sizes differ, dropout,
    transposed embedding.

    `keras_hub.layers.MaskedLMHead` maps to the hidden size, always has biases and a norm, and
    requires positions.

    Args:
        token_embedding: The `TokenEmbedding` to tie to.
        transform: bool. Whether the head has dense, activation, norm and output bias (v1).
        activation: Name as in `get_activation`, of the transform.
        epsilon: float. Of the norm: 1e-12 in every version of bert4keras.
        dropout: float. Used when `transform` is `False`.
        kernel_initializer: initializer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, hidden_dim)`.
        mask_positions: int tensor `(batch, count)`, the positions to predict, or `None` for all.
            The product with the vocabulary is by far the largest of a pretraining step, so pass the
            positions if you can.

    Returns:
        Logits `(batch, count or length, vocabulary_size)`, in the compute dtype.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import MaskedLMHead, TokenEmbedding
    >>> embedding = TokenEmbedding(10, 4)
    >>> embedding.build(None)
    >>> head = MaskedLMHead(embedding)
    >>> x = np.ones((2, 5, 8), "float32")
    >>> tuple(head(x).shape), tuple(head(x, np.array([[1], [3]])).shape)
    ((2, 5, 10), (2, 1, 10))

    Reference: `apply_final_layers` of bert4keras' `models.py` (BERT for v1, RoFormerV2 for v2).
    """

    def __init__(
        self,
        token_embedding,
        transform=True,
        activation="gelu",
        epsilon=1e-12,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.token_embedding = token_embedding
        self.has_transform = transform
        self.activation_name = activation_name(activation)
        self.activation = get_activation(activation)
        self.epsilon = epsilon
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.transform = self.norm = self.output_bias = self.dropout_layer = None

    def build(self, x_shape, mask_positions_shape=None):
        embedding_dim = self.token_embedding.output_dim
        dtype = self.dtype_policy
        if self.has_transform or embedding_dim != x_shape[-1]:
            self.transform = FlatDense(
                embedding_dim,
                use_bias=self.has_transform,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=dtype,
                name="transform",
            )
            self.transform.build(x_shape)
        if self.has_transform:
            self.norm = make_norm("layer_norm", self.epsilon, dtype=dtype, name="norm")
            self.norm.build((*x_shape[:-1], embedding_dim))
            self.output_bias = self.add_weight(
                shape=(self.token_embedding.input_dim,), initializer="zeros", name="output_bias"
            )
        else:
            self.dropout_layer = Dropout(self.dropout, dtype=dtype, name="dropout")

    def call(self, x, mask_positions=None, training=None):
        x = tokens_at(x, mask_positions)
        if self.transform is not None:
            x = self.transform(x)
        if not self.has_transform:
            return self.token_embedding(self.dropout_layer(x, training=training), reverse=True)
        logits = self.token_embedding(self.norm(self.activation(x)), reverse=True)
        return logits + ops.cast(self.output_bias, logits.dtype)

    def compute_output_spec(self, x, mask_positions=None, training=None):
        count = x.shape[1] if mask_positions is None else mask_positions.shape[1]
        shape = (x.shape[0], count, self.token_embedding.input_dim)
        return keras.KerasTensor(shape, self.token_embedding.reverse_dtype)

    compute_output_shape = shape_of_spec

    def get_config(self):
        arguments = arguments_of(
            self, MaskedLMHead, transform=self.has_transform, activation=self.activation_name
        )
        return {**super().get_config(), **arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))
