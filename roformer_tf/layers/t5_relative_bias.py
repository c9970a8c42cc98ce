import keras
import numpy as np
from keras import ops

from roformer_tf.layers.position_scheme import BiasScheme, positions_of
from roformer_tf.layers.relative_position import distance_rows


@keras.saving.register_keras_serializable(package="roformer_tf")
class T5RelativeBias(BiasScheme):
    """Relative bias of T5: adds a learned number for each head and distance bucket to the scores.

    Short distances have a bucket each; longer ones share buckets that grow with the logarithm of
    the distance. All blocks share one table. Scores are divided by `sqrt(head_dim)` before the bias
    is added, as in every scheme. T5 does not divide, and equation 8 leaves it open.

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
                "`num_buckets` must be even and 4 at least (2 unless `bidirectional`), and "
                f"`max_distance` larger than the {exact} distances that have a bucket of their "
                f"own. Received: num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self._buckets = _buckets(num_buckets, max_distance, bidirectional)

    @classmethod
    def for_model(cls, sizes, **options):
        options = {"bidirectional": sizes.masking != "causal", **options}
        return cls(sizes.num_heads, embeddings_initializer=sizes.initializer, **options)

    def build(self, *shapes, **named_shapes):
        self.relative_bias = self.add_weight(
            (self.num_buckets, self.num_heads),
            initializer=self.embeddings_initializer.clone(),
            name="relative_bias",
            autocast=False,
        )

    def call(self, token_ids, position_ids=None, padding_mask=None):
        rows = distance_rows(positions_of(token_ids, position_ids), self.max_distance)
        buckets = ops.take(ops.convert_to_tensor(self._buckets), rows)
        # the gradient of a reshape is dense, see `TokenEmbedding`
        table = ops.reshape(self.relative_bias, (self.num_buckets, self.num_heads))
        bias = ops.take(table, buckets, axis=0)  # (1 or batch, query, key, head)
        return ops.cast(ops.transpose(bias, (0, 3, 1, 2)), "float32")


def _buckets(num_buckets, max_distance, bidirectional):
    """Returns the bucket of each distance `key - query` up to `max_distance`, in T5's float32."""
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
