import keras
from keras import ops

from roformer_tf.layers.clipped_distances import (
    ClippedDistances,
    distance_averages,
    distance_products,
)
from roformer_tf.layers.config import arguments_of


@keras.saving.register_keras_serializable(package="roformer_tf")
class RelativePosition(ClippedDistances):
    """Relative positions of Shaw et al.: a learned vector for each distance, on keys and values.

    Each block has its own tables, shared by its heads. Equation 5 of the RoFormer paper writes the
    vectors before the projections `W_k` and `W_v`; here they come after them, as in Shaw et al.

    Args:
        head_dim: int. Size of one attention head.
        max_distance: int. Larger distances count as this one (`r_max`, and `-r_min`).
        on_values: bool. Whether there is a table for values too.
        embeddings_initializer: of the tables.

    Call arguments: see `PositionScheme`; distances are rounded.

    Returns:
        int32 tensor `(batch, query, key)`, the row of the tables for each pair, or `None` without
        `position_ids`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RelativePosition
    >>> scheme = RelativePosition(head_dim=4, max_distance=2)
    >>> np.array(scheme(np.zeros((1, 4), "int32"), np.array([[0, 1, 2, 9]])))[0].tolist()
    [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 4], [0, 0, 0, 2]]

    Reference: equation 5 of arXiv 2104.09864; Shaw et al., arXiv 1803.02155, equations 3 to 5.
    """

    per_layer = True

    def __init__(
        self, head_dim, max_distance=64, on_values=True, embeddings_initializer="uniform", **kwargs
    ):
        super().__init__(max_distance, **kwargs)
        self.head_dim = head_dim
        self.on_values = on_values
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.head_dim, embeddings_initializer=sizes.initializer, **options)

    def build(self, *shapes, **named_shapes):
        def table(name):
            shape = (2 * self.max_distance + 1, self.head_dim)
            return self.add_weight(
                shape, initializer=self.embeddings_initializer.clone(), name=name
            )

        self.key_table = table("key_table")
        self.value_table = table("value_table") if self.on_values else None

    def apply_to_scores(self, scores, query, key, context, attention):
        return scores + distance_products(query, ops.cast(self.key_table, query.dtype), context)

    def apply_to_output(self, output, weights, context):
        if self.value_table is None:
            return output
        table = ops.cast(self.value_table, weights.dtype)
        return output + distance_averages(weights, table, context)

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, RelativePosition)}
