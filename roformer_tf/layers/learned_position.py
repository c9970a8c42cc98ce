import keras
from keras import ops

from roformer_tf.layers.cache import in_plain_graph
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.token_embedding import TokenEmbedding


@keras.saving.register_keras_serializable(package="roformer_tf")
class LearnedPosition(PositionScheme):
    """Adds a learned vector for each absolute position to the embeddings, as BERT and WoBERT do.

    Args:
        max_sequence_length: int. Number of positions. Longer sequences raise an error.
        embedding_dim: int. Size of the token embedding.
        embeddings_initializer: initializer of the table.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int tensor `(batch, length)`, or `None` for 0, 1, 2, …; fractions are rounded,
            as there is no vector between two.

    Returns:
        Tensor `(1 or batch, length, embedding_dim)`. XLA and other backends cannot raise an error,
        so positions outside the table give NaN there.

    Raises:
        ValueError: If the sequence is longer than the table and its length is known while tracing.
        tf.errors.InvalidArgumentError: If a position is outside the table at run time, on
            TensorFlow.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import LearnedPosition
    >>> scheme = LearnedPosition(max_sequence_length=8, embedding_dim=4)
    >>> tuple(scheme(np.zeros((2, 3), "int32")).shape)
    (1, 3, 4)

    Reference: equation 3 of arXiv 2104.09864; `PositionEmbedding` of bert4keras' `layers.py`.
    """

    added_to_input = True

    def __init__(
        self, max_sequence_length, embedding_dim, embeddings_initializer="uniform", **kwargs
    ):
        super().__init__(**kwargs)
        self.max_sequence_length = max_sequence_length
        self.embedding_dim = embedding_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.position_embedding = TokenEmbedding(
            max_sequence_length,
            embedding_dim,
            embeddings_initializer=self.embeddings_initializer.clone(),
            dtype=self.dtype_policy,
            name="position_embedding",
        )

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.max_sequence_length, sizes.embedding_dim, sizes.initializer, **options)

    def build(self, *shapes, **named_shapes):
        self.position_embedding.build(None)

    def call(self, token_ids, position_ids=None, padding_mask=None):
        length = token_ids.shape[1]
        if position_ids is None:
            if isinstance(length, int) and length > self.max_sequence_length:
                raise ValueError(
                    f"The sequence has {length} tokens, but there are learned positions for only "
                    f"{self.max_sequence_length} (`max_sequence_length`). Shorten it, for example "
                    "with `sequence_length` of the preprocessor, or use a model with rotary "
                    "positions."
                )
            position_ids = ops.arange(ops.shape(token_ids)[1])[None]
            if isinstance(length, int):
                return self.position_embedding(position_ids)
        positions = ops.cast(ops.round(ops.cast(position_ids, "float32")), "int32")
        inside = ops.logical_and(positions >= 0, positions < self.max_sequence_length)
        self._check_inside(positions, inside)
        vectors = self.position_embedding(ops.clip(positions, 0, self.max_sequence_length - 1))
        return ops.where(inside[..., None], vectors, ops.cast(float("nan"), vectors.dtype))

    def _check_inside(self, positions, inside):
        if not in_plain_graph():
            return
        import tensorflow as tf

        message = (
            f"There are learned positions from 0 to {self.max_sequence_length - 1} only "
            "(`max_sequence_length`). Shorten the texts, for example with `sequence_length` of the "
            "preprocessor, or use a model with rotary positions. Received positions from, to:"
        )
        # an empty input gives a range inside the table
        ends = tf.reduce_min(tf.minimum(positions, 0)), tf.reduce_max(tf.maximum(positions, 0))
        tf.debugging.Assert(tf.reduce_all(inside), [message, *ends])

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        return keras.KerasTensor(
            (batch, token_ids.shape[1], self.embedding_dim), self.compute_dtype
        )
