import keras
import numpy as np
from keras import ops

from roformer_tf import rotary
from roformer_tf.layers.relative_position import (
    ClippedDistances,
    distance_averages,
    distance_products,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class SinusoidalRelativePosition(ClippedDistances):
    """Relative positions of NEZHA: adds a sinusoidal vector for each distance to keys and values.

    Like `RelativePosition`, with sines instead of learned tables: the same ones for keys, values
    and all blocks.

    Args:
        head_dim: even int. Size of one attention head.
        max_distance: int. Larger distances count as this one.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; not read.
        position_ids: int or float tensor `(batch, length)`; distances are rounded. `None` for 0, 1,
            2, …

    Returns:
        int32 tensor `(batch, query, key)`, the row of the table for each pair, or `None` without
        `position_ids`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import SinusoidalRelativePosition
    >>> scheme = SinusoidalRelativePosition(head_dim=4)
    >>> np.array(scheme(np.zeros((1, 2), "int32"), np.array([[5, 7]])))[0].tolist()
    [[64, 66], [62, 64]]

    Reference: NEZHA, arXiv 1909.00204, equations 3 and 4; equation 5 of arXiv 2104.09864; `NEZHA`
    of bert4keras.
    """

    def __init__(self, head_dim, max_distance=64, **kwargs):
        super().__init__(max_distance, **kwargs)
        self.head_dim = head_dim
        angle = np.arange(2 * max_distance + 1)[:, None] * rotary.frequencies(head_dim)
        table = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        self._table = table.reshape(-1, head_dim).astype("float32")

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.head_dim, **options)

    def apply_to_scores(self, scores, query, key, context, attention):
        return scores + distance_products(query, self._table_in(query.dtype), context)

    def apply_to_output(self, output, weights, context):
        return output + distance_averages(weights, self._table_in(weights.dtype), context)

    def _table_in(self, dtype):
        return ops.cast(ops.convert_to_tensor(self._table), dtype)
