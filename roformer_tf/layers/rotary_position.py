import keras
from keras import ops

from roformer_tf import rotary
from roformer_tf.layers.position_scheme import PositionScheme


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryPosition(PositionScheme):
    """Rotary position embedding as a position scheme: queries and keys are turned by their positions, values are not.

    Args:
        head_dim: even positive integer, size of one attention head.
        max_wavelength: float, the base of the frequencies, 10000 in the paper.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …; fractions and negative positions
            are fine, and no table bounds them.

    Returns:
        `(cos, sin)`: float32 tensors `(1 or batch, 1, length, head_dim)`, whatever the compute dtype.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RotaryPosition
    >>> scheme = RotaryPosition(head_dim=4)
    >>> cos, sin = scheme(np.zeros((2, 3), "int32"))
    >>> tuple(cos.shape)
    (1, 1, 3, 4)
    >>> query = key = np.ones((2, 1, 3, 4), "float32")
    >>> q, k = scheme.apply_to_query_key(query, key, (cos, sin))
    >>> tuple(q.shape)
    (2, 1, 3, 4)

    Reference: equations 14 to 16 of arXiv 2104.09864; `roformer_tf.rotary`.
    """

    def __init__(self, head_dim, max_wavelength=10000.0, **kwargs):
        super().__init__(**kwargs)
        self.head_dim = head_dim
        self.max_wavelength = max_wavelength
        self._theta = rotary.frequencies(head_dim, max_wavelength)

    @classmethod
    def for_model(cls, sizes, **options):
        """The scheme for a model, see `PositionScheme.for_model`."""
        return cls(sizes.head_dim, sizes.max_wavelength, **options)

    def call(self, token_ids, position_ids=None, padding_mask=None):
        if position_ids is None:
            position_ids = ops.arange(ops.shape(token_ids)[1])[None]
        cos, sin = rotary.tables(position_ids, self._theta)  # (batch, length, head_dim)
        return cos[:, None], sin[:, None]

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        shape = (batch, 1, token_ids.shape[1], self.head_dim)
        return keras.KerasTensor(shape, "float32"), keras.KerasTensor(shape, "float32")

    def apply_to_query_key(self, query, key, context):
        cos, sin = context
        return rotary.rotate(query, cos, sin), rotary.rotate(key, cos, sin)

    def get_config(self):
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_wavelength": self.max_wavelength,
        }
