import keras

from roformer_tf.layers.config import arguments_of, deserialize_parts, shape_of_spec
from roformer_tf.layers.dropout import Dropout
from roformer_tf.layers.flat_dense import make_dense
from roformer_tf.layers.rms_norm import make_norm
from roformer_tf.layers.token_embedding import TokenEmbedding
from roformer_tf.naming import automatic_name


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerEmbeddings(keras.layers.Layer):
    """Token and segment embeddings, norm, dropout, and the projection to `hidden_dim` of factorised
    models.

    v1 (`norm="layer_norm"`) normalises and then drops; v2 (`norm="rms_norm"`) drops and then
    normalises.

    Args:
        vocabulary_size: Positive int.
        embedding_dim: int. Size of the embeddings.
        hidden_dim: int. Where it differs from `embedding_dim` a dense layer maps one to the other.
        num_segments: Number of segment ids; 0 for no segment embedding.
        dropout: float.
        norm: `"layer_norm"` or `"rms_norm"`.
        epsilon: float. Of the norm.
        use_bias: bool. Whether the projection has a bias (v1 yes, v2 no).
        embeddings_initializer, kernel_initializer: initializers.
        token_embedding: `TokenEmbedding` `(vocabulary_size, embedding_dim)` to share with other
            layers. The layer makes one of its own by default.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`.
        segment_ids: int tensor `(batch, length)`; not read when `num_segments` is 0.
        position_embeddings: Tensor `(1 or batch, length, embedding_dim)` to add before the norm, or
            `None`.

    Returns:
        Tensor `(batch, length, hidden_dim)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RoFormerEmbeddings
    >>> layer = RoFormerEmbeddings(vocabulary_size=10, embedding_dim=4, hidden_dim=6)
    >>> ids = np.array([[1, 2, 3]])
    >>> tuple(layer(ids, ids * 0).shape)
    (1, 3, 6)

    Reference: `apply_embeddings` of bert4keras' `models.py` (NEZHA for v1, RoFormerV2 for v2).
    """

    def __init__(
        self,
        vocabulary_size,
        embedding_dim,
        hidden_dim,
        num_segments=2,
        dropout=0.0,
        norm="layer_norm",
        epsilon=1e-12,
        use_bias=True,
        embeddings_initializer="uniform",
        kernel_initializer="glorot_uniform",
        token_embedding=None,
        name=None,
        **kwargs,
    ):
        super().__init__(name=name or automatic_name(type(self)), **kwargs)
        self.vocabulary_size = vocabulary_size
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.num_segments = num_segments
        self.dropout = dropout
        self.norm_kind = norm
        self.epsilon = epsilon
        self.use_bias = use_bias
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        dtype = self.dtype_policy

        def embedding(number, name):
            initializer = self.embeddings_initializer.clone()
            return TokenEmbedding(
                number, embedding_dim, embeddings_initializer=initializer, dtype=dtype, name=name
            )

        self.token_embedding = token_embedding or embedding(vocabulary_size, "token_embedding")
        size = self.token_embedding.input_dim, self.token_embedding.output_dim
        if size != (vocabulary_size, embedding_dim):
            raise ValueError(
                "`token_embedding` must be (vocabulary_size, embedding_dim) = "
                f"{(vocabulary_size, embedding_dim)}. Received: one of {size}"
            )
        self.segment_embedding = None
        if num_segments:
            self.segment_embedding = embedding(num_segments, "segment_embedding")
        self.norm = make_norm(norm, epsilon, dtype=dtype, name="norm")
        self.dropout_layer = Dropout(dropout, dtype=dtype, name="dropout")
        self.projection = None
        if embedding_dim != hidden_dim:
            self.projection = make_dense(self, hidden_dim, "embedding_hidden_mapping_in")

    def build(self, token_ids_shape, segment_ids_shape=None, position_embeddings_shape=None):
        if not self.token_embedding.built:  # else another layer that shares it has built it
            self.token_embedding.build(token_ids_shape)
        if self.segment_embedding is not None:
            self.segment_embedding.build(token_ids_shape)
        shape = (*token_ids_shape, self.embedding_dim)
        self.norm.build(shape)
        if self.projection is not None:
            self.projection.build(shape)

    def call(self, token_ids, segment_ids=None, position_embeddings=None, training=None):
        x = self.token_embedding(token_ids)
        if self.segment_embedding is not None:
            x = x + self.segment_embedding(segment_ids)
        if position_embeddings is not None:
            x = x + position_embeddings
        if self.norm_kind == "layer_norm":
            x = self.dropout_layer(self.norm(x), training=training)
        else:
            x = self.norm(self.dropout_layer(x, training=training))
        return x if self.projection is None else self.projection(x)

    def compute_output_spec(
        self, token_ids, segment_ids=None, position_embeddings=None, training=None
    ):
        return keras.KerasTensor((*token_ids.shape, self.hidden_dim), self.compute_dtype)

    compute_output_shape = shape_of_spec

    def get_config(self):
        arguments = arguments_of(self, RoFormerEmbeddings, norm=self.norm_kind)
        return {**super().get_config(), **arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))
