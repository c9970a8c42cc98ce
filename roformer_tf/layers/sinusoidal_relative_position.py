import keras
import numpy as np
from keras import ops

from roformer_tf import rotary
from roformer_tf.layers.position_scheme import PositionScheme


@keras.saving.register_keras_serializable(package="roformer_tf")
class SinusoidalRelativePosition(PositionScheme):
    """Relative positions of NEZHA: a fixed sinusoidal vector for each clipped distance, added to keys and values.

    Args:
        head_dim: even positive integer, size of one attention head.
        max_distance: positive integer; larger distances count as this one.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int tensor `(batch, length)`, or `None` for 0, 1, 2, …

    Returns:
        float32 tensor `(1 or batch, length, length, head_dim)`: batch, query, key, feature.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import SinusoidalRelativePosition
    >>> scheme = SinusoidalRelativePosition(head_dim=4)
    >>> tuple(scheme(np.zeros((2, 3), "int32")).shape)
    (1, 3, 3, 4)

    Reference: NEZHA, arXiv 1909.00204, equations 3 and 4; equation 5 of arXiv 2104.09864; `NEZHA` of bert4keras.
    """

    needs_scores = True

    def __init__(self, head_dim, max_distance=64, **kwargs):
        super().__init__(**kwargs)
        self.head_dim = head_dim
        self.max_distance = max_distance
        angle = np.arange(2 * max_distance + 1)[:, None] * rotary.frequencies(head_dim)
        table = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        self._table = table.reshape(-1, head_dim).astype("float32")

    @classmethod
    def for_model(cls, sizes, **options):
        """The scheme for a model, see `PositionScheme.for_model`."""
        return cls(sizes.head_dim, **options)

    def call(self, token_ids, position_ids=None, padding_mask=None):
        if position_ids is None:
            position_ids = ops.arange(ops.shape(token_ids)[1])[None]
        position_ids = ops.cast(position_ids, "int32")
        distance = position_ids[:, None, :] - position_ids[:, :, None]  # key - query
        distance = ops.clip(distance, -self.max_distance, self.max_distance)
        return ops.take(ops.convert_to_tensor(self._table), distance + self.max_distance, axis=0)

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        length = token_ids.shape[1]
        return keras.KerasTensor((batch, length, length, self.head_dim), "float32")

    def apply_to_scores(self, scores, query, key, context, attention):
        # (batch, head, query, feature) x (batch, query, key, feature), as a product for each query
        context = ops.cast(context, query.dtype)
        added = ops.matmul(ops.transpose(query, (0, 2, 1, 3)), ops.swapaxes(context, -1, -2))
        return scores + ops.transpose(added, (0, 2, 1, 3))

    def apply_to_output(self, output, weights, context):
        added = ops.matmul(ops.transpose(weights, (0, 2, 1, 3)), ops.cast(context, weights.dtype))
        return output + ops.transpose(added, (0, 2, 1, 3))

    def get_config(self):
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_distance": self.max_distance,
        }
