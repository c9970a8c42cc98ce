import keras
import numpy as np
from keras import ops

from roformer_tf.layers.clipped_distances import distance_rows
from roformer_tf.layers.position_scheme import PositionScheme


@keras.saving.register_keras_serializable(package="roformer_tf")
class T5RelativeBias(PositionScheme):
    """Relative bias of T5: a learned number for each head and bucket of distances, added to the scores.

    Short distances have a bucket each, longer ones share buckets that grow with the logarithm of
    the distance. All blocks share one table. Scores are divided by `sqrt(head_dim)` as in every
    scheme, and the bias is added after that; T5 itself does not divide, and equation 8 does not
    say.

    Args:
        num_heads: Positive int.
        num_buckets: int. Even if `bidirectional`.
        max_distance: int. This and larger distances are in the last bucket.
        bidirectional: bool. Whether half of the buckets are for keys after the query; otherwise
            those count as distance 0 (for causal models, which do not see them).
        embeddings_initializer: of the table.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`; distances are rounded. `None` for 0, 1,
            2, …

    Returns:
        float32 tensor `(1 or batch, num_heads, query, key)`.

    Raises:
        ValueError: If the buckets do not fit `max_distance`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import T5RelativeBias
    >>> scheme = T5RelativeBias(num_heads=2)
    >>> tuple(scheme(np.zeros((3, 5), "int32")).shape)
    (1, 2, 5, 5)

    Reference: equation 8 of arXiv 2104.09864; Raffel et al., arXiv 1910.10683, section 2.1;
    `relative_position_bucket` of mesh-tensorflow.
    """

    needs_scores = True

    def __init__(
        self,
        num_heads,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        embeddings_initializer="uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        exact = num_buckets // (4 if bidirectional else 2)  # distances with a bucket of their own
        if exact < 1 or max_distance <= exact or (bidirectional and num_buckets % 2):
            raise ValueError(
                "`num_buckets` must be even and 4 at least (2 unless `bidirectional`), and `max_distance` larger than "
                f"the {exact} distances that have a bucket of their own. Received: num_buckets={num_buckets}, "
                f"max_distance={max_distance}, bidirectional={bidirectional}"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self._buckets = _buckets(num_buckets, max_distance, bidirectional)

    @classmethod
    def for_model(cls, sizes, **options):
        """The scheme for a model, see `PositionScheme.for_model`."""
        options = {"bidirectional": sizes.masking != "causal", **options}
        return cls(sizes.num_heads, embeddings_initializer=sizes.initializer, **options)

    def build(self, *shapes, **named_shapes):
        self.relative_bias = self.add_weight(
            (self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer.clone(),
            name="relative_bias",
            autocast=False,
        )
        self.built = True

    def call(self, token_ids, position_ids=None, padding_mask=None):
        if position_ids is None:
            position_ids = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None]
        rows = distance_rows(position_ids, self.max_distance)
        buckets = ops.take(ops.convert_to_tensor(self._buckets), rows)
        # the gradient of a reshape is dense, see `TokenEmbedding`
        table = ops.reshape(self.relative_bias, (self.num_buckets, self.num_heads))
        bias = ops.take(table, buckets, axis=0)  # (1 or batch, query, key, head)
        return ops.cast(ops.transpose(bias, (0, 3, 1, 2)), "float32")

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        length = token_ids.shape[1]
        return keras.KerasTensor((batch, self.num_heads, length, length), "float32")

    def apply_to_scores(self, scores, query, key, context, attention):
        return ops.cast(scores, "float32") + context

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


def _buckets(num_buckets, max_distance, bidirectional):
    """The bucket of each distance `key - query` from `-max_distance` to `max_distance`, in float32 as in T5."""
    distance = np.arange(-max_distance, max_distance + 1)
    bucket = np.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        bucket += num_buckets * (distance > 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = num_buckets // 2
    octaves = np.log(np.maximum(distance, exact).astype("float32") / np.float32(exact))
    share = octaves / np.float32(np.log(max_distance / exact))
    large = exact + (share * np.float32(num_buckets - exact)).astype("int64")
    large = np.minimum(large, num_buckets - 1)
    return (bucket + np.where(distance < exact, distance, large)).astype("int32")
