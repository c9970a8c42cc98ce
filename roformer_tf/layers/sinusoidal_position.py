import keras
from keras import ops

from roformer_tf import rotary
from roformer_tf.layers.position_scheme import PositionScheme, positions_of


@keras.saving.register_keras_serializable(package="roformer_tf")
class SinusoidalPosition(PositionScheme):
    """Sinusoidal absolute positions of the first Transformer, added to the embeddings.

    Args:
        embedding_dim: even int. Size of the token embedding.
        max_wavelength: float. Base of the frequencies.
        scale: float. Factor of the vectors; 1 is equation 4. Sines of size 1 drown token embeddings
            that start with a standard deviation of 0.02; use a scale of about 0.02 for those.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …; no table
            bounds them.

    Returns:
        Tensor `(1 or batch, length, embedding_dim)`: sines at even, cosines at odd features.
        Computed in float32 from exact angles, rounded once to the compute dtype.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import SinusoidalPosition
    >>> scheme = SinusoidalPosition(embedding_dim=2)
    >>> vectors = np.array(scheme(np.zeros((1, 3), "int32")))[0]
    >>> bool(np.allclose(vectors, [[0.0, 1.0], [0.84, 0.54], [0.91, -0.42]], atol=0.01))
    True

    Reference: equation 4 of arXiv 2104.09864; Vaswani et al., arXiv 1706.03762, section 3.5.
    """

    added_to_input = True

    def __init__(self, embedding_dim, max_wavelength=10000.0, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(embedding_dim, int) or embedding_dim <= 0 or embedding_dim % 2:
            raise ValueError(
                "`embedding_dim` must be a positive even integer, half of it for sines and half "
                f"for cosines. Received: embedding_dim={embedding_dim!r}"
            )
        self.embedding_dim = embedding_dim
        self.max_wavelength = max_wavelength
        self.scale = scale
        self._theta = rotary.frequencies(embedding_dim, max_wavelength)

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.embedding_dim, sizes.max_wavelength, **options)

    def call(self, token_ids, position_ids=None, padding_mask=None):
        angle = rotary.angles(positions_of(token_ids, position_ids), self._theta)
        pairs = self.scale * ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)
        shape = (*ops.shape(angle)[:-1], self.embedding_dim)
        return ops.cast(ops.reshape(pairs, shape), self.compute_dtype)

    def compute_output_spec(self, token_ids, position_ids=None, padding_mask=None):
        batch = 1 if position_ids is None else position_ids.shape[0]
        shape = (batch, token_ids.shape[1], self.embedding_dim)
        return keras.KerasTensor(shape, self.compute_dtype)
