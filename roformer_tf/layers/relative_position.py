"""Relative positions of Shaw et al., and what is shared by schemes with a vector for each distance.

A table has a vector for each distance `key - query` from `-max_distance` to `max_distance`. No
tensor holds a vector for each pair of tokens: queries are multiplied by the few vectors of the
table, and the products are gathered by pairs.
"""

import math

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.portable import custom_gradient

_MOST = 2**31 - 1  # indices are int32


class ClippedDistances(PositionScheme):
    """Base class of schemes with a vector for each clipped distance; its context is table rows.

    Args:
        max_distance: int. Larger distances are clipped to this one.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; not read.
        position_ids: int or float tensor `(batch, length)`, or `None`.

    Returns:
        `distance_rows` of the positions.
    """

    needs_scores = True

    def __init__(self, max_distance, **kwargs):
        super().__init__(**kwargs)
        check_positive_integer("max_distance", max_distance)
        self.max_distance = max_distance

    def call(self, token_ids, position_ids=None, padding_mask=None):
        return distance_rows(position_ids, self.max_distance)

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        if position_ids is None:
            return None
        batch, length = position_ids.shape
        return keras.KerasTensor((batch, length, length), "int32")


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
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; not read.
        position_ids: int or float tensor `(batch, length)`; distances are rounded. `None` for 0, 1,
            2, …

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


def distance_rows(position_ids, max_distance):
    """Returns the row of the table for each query and key.

    Args:
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …
        max_distance: Positive int.

    Returns:
        int32 tensor `(batch, query, key)`: `clip(key - query) + max_distance`, rounded. `None` if
        `position_ids` is `None`, as a short sequence then needs only a part of the table.
    """
    if position_ids is None:
        return None
    position_ids = ops.convert_to_tensor(position_ids)
    distance = position_ids[:, None, :] - position_ids[:, :, None]
    distance = ops.clip(distance, -max_distance, max_distance)
    return ops.cast(ops.round(ops.cast(distance, "float32")), "int32") + max_distance


def distance_products(x, table, rows):
    """Multiplies each vector with the vector of its distance to each other token.

    Args:
        x: Tensor `(batch, num_heads, length, features)`.
        table: Tensor `(2 * max_distance + 1, features)`, or such a table for each head.
        rows: Output of `distance_rows`.

    Returns:
        Tensor `(batch, num_heads, length, length)`: `y[b, h, i, j] = x[b, h, i] · table[rows[b, i,
        j]]`.
    """
    table, rows = _counted(table, rows, ops.shape(x)[-2])
    products = ops.matmul(x, ops.swapaxes(table, -1, -2))  # (batch, head, length, distance)
    count = ops.shape(table)[-2]

    @custom_gradient
    def by_pairs(products):
        return _pairs(products, rows), lambda upstream: _sums(upstream, rows, count)

    return by_pairs(products)


def distance_averages(weights, table, rows):
    """Averages the vectors of the distances like values.

    Args:
        weights: Tensor `(batch, num_heads, query, key)`.
        table: Tensor `(2 * max_distance + 1, features)`.
        rows: Output of `distance_rows`.

    Returns:
        Tensor `(batch, num_heads, query, features)`: the sum over keys of `weights[b, h, i, j] *
        table[rows[b, i, j]]`.
    """
    table, rows = _counted(table, rows, ops.shape(weights)[-1])
    count = ops.shape(table)[-2]

    @custom_gradient
    def by_distance(weights):
        return _sums(weights, rows, count), lambda upstream: _pairs(upstream, rows)

    return ops.matmul(by_distance(weights), table)


def near_distances(table, length):
    """Returns the part of a table for distances that occur among tokens at 0, 1, 2, …

    Args:
        table: Tensor `(..., 2 * max_distance + 1, features)`.
        length: integer or scalar tensor, number of tokens.

    Returns:
        Tensor `(..., 2 * min(max_distance, length - 1) + 1, features)`.
    """
    max_distance = _reach(table)
    if isinstance(length, int) and isinstance(max_distance, int):
        reach = min(max_distance, length - 1)
    else:
        reach = ops.minimum(max_distance, length - 1)
    lead, features = table.shape[:-2], table.shape[-1]
    first, count = max_distance - reach, 2 * reach + 1
    return ops.slice(table, (*(0 for _ in lead), first, 0), (*lead, count, features))


def _counted(table, rows, length):
    """Returns table and rows; without `rows` those of 0, 1, 2, … and their part of the table."""
    if rows is not None:
        return table, rows
    table = near_distances(table, length)
    return table, distance_rows(ops.arange(length, dtype="int32")[None], _reach(table))


def _reach(table):
    """Returns the largest distance in a table."""
    return (ops.shape(table)[-2] - 1) // 2


# Each of these two is the gradient of the other. With explicit gradients only the rows are kept,
# which all heads and blocks share. TensorFlow itself would keep an index for each score.


def _pairs(products, rows):
    """Maps `(batch, num_heads, query, distance)` to `(batch, num_heads, query, key)`."""
    indices = _indices(rows, ops.shape(products))
    return ops.take(ops.reshape(products, (-1,)), indices, axis=0)


def _sums(pairs, rows, count):
    """Maps `(batch, num_heads, query, key)` to `(batch, num_heads, query, count)`."""
    batch, heads, length = ops.shape(pairs)[:3]
    shape = (batch, heads, length, count)
    # in float32: many keys may be at one distance
    flat = ops.cast(ops.reshape(pairs, (-1,)), "float32")
    indices = ops.reshape(_indices(rows, shape), (-1,))
    sums = ops.segment_sum(flat, indices, batch * heads * length * count)
    return ops.cast(ops.reshape(sums, shape), pairs.dtype)


def _indices(rows, shape):
    """Returns the indices of `rows` in a flat `(batch, num_heads, length, rows of the table)`."""
    batch, heads, length, count = shape
    if all(isinstance(number, int) for number in shape) and math.prod(shape) > _MOST:
        raise ValueError(
            "Relative positions look up at most 2^31 - 1 numbers at once: "
            "batch * num_heads * length * distances. Use smaller batches or shorter sequences. "
            f"Received: {' * '.join(map(str, shape))}"
        )
    starts = ops.arange(batch * heads * length, dtype="int32") * count
    return ops.reshape(starts, (batch, heads, length, 1)) + rows[:, None]
