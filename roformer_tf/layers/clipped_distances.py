"""Schemes with a vector for each clipped distance: products of queries with them, and their averages.

A table has a vector for each distance `key - query` from `-max_distance` to `max_distance`; larger ones are clipped to
these. No tensor here has a vector for each pair of tokens: queries meet the few vectors of the table, and what comes of
it is laid out by pairs.
"""

import keras
from keras import ops

from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.layers.relative_shift import relative_shift, relative_unshift


class ClippedDistances(PositionScheme):
    """Base class of the schemes with a vector for each clipped distance; its context are the rows of their tables.

    Args:
        max_distance: positive integer; larger distances count as this one.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; not read.
        position_ids: int or float tensor `(batch, length)`, or `None`.

    Returns:
        `distance_rows` of the positions.
    """

    needs_scores = True

    def __init__(self, max_distance, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(max_distance, int) or max_distance <= 0:
            raise ValueError(
                f"`max_distance` must be a positive integer. Received: max_distance={max_distance!r}"
            )
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
    """The row of the table that belongs to each query and key.

    Args:
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …
        max_distance: positive integer.

    Returns:
        int32 tensor `(batch, query, key)`: `clip(key - query) + max_distance`, rounded; `None` for `None`, since rows
        of positions that are counted are known without being written down.
    """
    if position_ids is None:
        return None
    position_ids = ops.convert_to_tensor(position_ids)
    distance = position_ids[:, None, :] - position_ids[:, :, None]
    distance = ops.clip(distance, -max_distance, max_distance)
    return ops.cast(ops.round(ops.cast(distance, "float32")), "int32") + max_distance


def distance_products(x, table, rows):
    """The product of each vector with the vector of its distance to each other token.

    Args:
        x: tensor `(batch, num_heads, length, features)`.
        table: tensor `(2 * max_distance + 1, features)`, or such a table for each head.
        rows: of `distance_rows`.

    Returns:
        Tensor `(batch, num_heads, length, length)`: `y[b, h, i, j] = x[b, h, i] · table[rows[b, i, j]]`.
    """
    if rows is not None:
        # in float32, as the gradient of a distance is a sum over keys; along an axis that is not the first, as
        # TensorFlow's gradient is a dense tensor then
        products = ops.cast(ops.matmul(x, ops.swapaxes(table, -1, -2)), "float32")
        places = _places(rows, ops.shape(products))
        products = ops.take(ops.reshape(products, (1, -1)), places, axis=1)[0]
        return ops.cast(products, x.dtype)
    length = ops.shape(x)[-2]
    table = near_distances(table, length)
    beyond = length - 1 - _reach(table)  # distances that are clipped, on either side
    products = ops.matmul(x, ops.swapaxes(table, -1, -2))  # (batch, head, query, distance)
    shape = (*ops.shape(x)[:-1], beyond)
    first = ops.broadcast_to(products[..., :1], shape)
    last = ops.broadcast_to(products[..., -1:], shape)
    return relative_shift(ops.concatenate([first, products, last], axis=-1))


def distance_averages(weights, table, rows):
    """The vectors of the distances, averaged like values.

    Args:
        weights: tensor `(batch, num_heads, query, key)`.
        table: tensor `(2 * max_distance + 1, features)`.
        rows: of `distance_rows`.

    Returns:
        Tensor `(batch, num_heads, query, features)`: the sum over keys of `weights[b, h, i, j] * table[rows[b, i, j]]`.
    """
    batch, heads, length = ops.shape(weights)[:3]
    if rows is not None:
        shape = (batch, heads, length, table.shape[0])
        places = ops.reshape(_places(rows, shape), (-1,))
        size = batch * heads * length * table.shape[0]
        # in float32: many weights may fall on one distance
        sums = ops.segment_sum(ops.cast(ops.reshape(weights, (-1,)), "float32"), places, size)
        return ops.matmul(ops.cast(ops.reshape(sums, shape), weights.dtype), table)
    table = near_distances(table, length)
    beyond = length - 1 - _reach(table)
    by_distance = relative_unshift(weights)  # (batch, head, query, distance)
    inner = ops.shape(by_distance)[-1] - beyond
    output = ops.matmul(by_distance[..., beyond:inner], table)
    for end, vector in (
        (by_distance[..., :beyond], table[:1]),
        (by_distance[..., inner:], table[-1:]),
    ):
        total = ops.sum(ops.cast(end, "float32"), axis=-1, keepdims=True)
        output = output + ops.cast(total, weights.dtype) * vector
    return output


def near_distances(table, length):
    """The part of a table for distances that occur among tokens at 0, 1, 2, …

    Args:
        table: tensor `(..., 2 * max_distance + 1, features)`.
        length: integer or scalar tensor, number of tokens.

    Returns:
        Tensor `(..., 2 * min(max_distance, length - 1) + 1, features)`.
    """
    max_distance = _reach(table)
    if isinstance(length, int) and isinstance(max_distance, int):
        reach = min(max_distance, length - 1)
    else:
        reach = ops.minimum(max_distance, length - 1)
    return table[..., max_distance - reach : max_distance + reach + 1, :]


def _reach(table):
    """The largest distance that a table has a vector for."""
    return (ops.shape(table)[-2] - 1) // 2


def _places(rows, shape):
    """Where the entries of `rows` stand in a flat tensor `(batch, num_heads, length, rows of the table)`."""
    batch, heads, length, count = shape
    starts = ops.arange(batch * heads * length, dtype="int32") * count
    return ops.reshape(starts, (batch, heads, length, 1)) + rows[:, None]
