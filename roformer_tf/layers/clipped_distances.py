"""Position schemes with a vector for each clipped distance.

A table has a vector for each distance `key - query` from `-max_distance` to `max_distance`. Larger
distances are clipped. No tensor holds a vector for each pair of tokens: queries are multiplied by
the few vectors of the table, and the products are gathered by pairs.
"""

import math

import keras
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.portable import custom_gradient

_MOST = 2**31 - 1  # indices are int32


class ClippedDistances(PositionScheme):
    """Base class of schemes with a vector for each clipped distance; context: `distance_rows`."""

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

    def get_config(self):
        return {**super().get_config(), "max_distance": self.max_distance}


def distance_rows(position_ids, max_distance):
    """Returns the row of the table for each query and key, int32 `(batch, query, key)`.

    It is `clip(key - query) + max_distance`, rounded. `None` if `position_ids` is `None`, as a
    short sequence then needs only a part of the table.
    """
    if position_ids is None:
        return None
    position_ids = ops.convert_to_tensor(position_ids)
    distance = position_ids[:, None, :] - position_ids[:, :, None]
    distance = ops.clip(distance, -max_distance, max_distance)
    return ops.cast(ops.round(ops.cast(distance, "float32")), "int32") + max_distance


def distance_products(x, table, rows):
    """Multiplies each vector with the vector of its distance to each other token.

    Of `x` `(batch, num_heads, length, features)`, a table, or one for each head, and
    `distance_rows` it returns `y[b, h, i, j] = x[b, h, i] · table[rows[b, i, j]]`.
    """
    table, rows = _counted(table, rows, ops.shape(x)[-2])
    products = ops.matmul(x, ops.swapaxes(table, -1, -2))  # (batch, head, length, distance)
    count = ops.shape(table)[-2]

    @custom_gradient
    def by_pairs(products):
        def gradient(*arguments, upstream=None):
            return _sums(arguments[0] if upstream is None else upstream, rows, count)

        return _pairs(products, rows), gradient

    return by_pairs(products)


def distance_averages(weights, table, rows):
    """Averages the vectors of the distances like values, by weights `(batch, head, query, key)`.

    Returns `(batch, head, query, features)`: sums of `weights[b, h, i, j] * table[rows[b, i, j]]`.
    """
    table, rows = _counted(table, rows, ops.shape(weights)[-1])
    count = ops.shape(table)[-2]

    @custom_gradient
    def by_distance(weights):
        def gradient(*arguments, upstream=None):
            return _pairs(arguments[0] if upstream is None else upstream, rows)

        return _sums(weights, rows, count), gradient

    return ops.matmul(by_distance(weights), table)


def near_distances(table, length):
    """Returns the part of a table for distances that occur among `length` tokens at 0, 1, 2, …"""
    max_distance = _reach(table)
    if isinstance(length, int) and isinstance(max_distance, int):
        reach = min(max_distance, length - 1)
    else:
        reach = ops.minimum(max_distance, length - 1)
    return table[..., max_distance - reach : max_distance + reach + 1, :]


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
    numbers = batch, heads, length, count
    if all(isinstance(number, int) for number in numbers) and math.prod(numbers) > _MOST:
        raise ValueError(
            "Relative positions look up at most 2^31 - 1 numbers at once: "
            "batch * num_heads * length * distances. Use smaller batches or shorter sequences. "
            f"Received: {' * '.join(map(str, numbers))}"
        )
    starts = ops.arange(batch * heads * length, dtype="int32") * count
    return ops.reshape(starts, (batch, heads, length, 1)) + rows[:, None]
