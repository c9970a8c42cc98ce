"""What a position scheme adds to a model: weights, and products of matrices."""

import dataclasses
import functools
from types import SimpleNamespace

import keras

from roformer_tf.layers.position_schemes import make_position_schemes


def position_weight_shapes(sizes):
    """Shapes of a position scheme's weights, of all blocks together.

    Args:
        sizes: `ModelSizes`.

    Returns:
        List of tuples of integers.
    """
    scheme, copies = _scheme_of(sizes)
    return copies * [tuple(weight.shape) for weight in scheme.weights]


def num_distances(sizes, length):
    """How many distances each query is multiplied with, at positions 0, 1, 2, …; 0 for schemes that do no such thing.

    Args:
        sizes: `ModelSizes`.
        length: integer, tokens of a row.
    """
    if sizes.position_scheme not in (
        "relative",
        "sinusoidal_relative",
        "transformer_xl",
        "deberta",
    ):
        return 0
    scheme, _ = _scheme_of(sizes)
    # clipped, where the scheme says so
    return 2 * min(getattr(scheme, "max_distance", length), length - 1) + 1


def has_values(sizes):
    """Whether a scheme has learned vectors of distances that are averaged like values, for `ModelSizes`."""
    scheme, _ = _scheme_of(sizes)
    return sizes.position_scheme == "relative" and scheme.on_values


@dataclasses.dataclass(frozen=True)
class PositionFlops:
    """Multiplications and additions of a position scheme's matrix products, forward.

    Args:
        in_blocks: of all blocks.
        once: outside of blocks, once for a batch.
        constant: part of the above where one factor is a constant, which needs no gradient.
    """

    in_blocks: int = 0
    once: int = 0
    constant: int = 0

    @classmethod
    def of(cls, sizes, rows, length):
        """The products of a batch of `rows` rows of `length` tokens at 0, 1, 2, …, for `ModelSizes`."""
        name, width, layers = sizes.position_scheme, sizes.hidden_dim, sizes.num_layers
        distances = num_distances(sizes, length)
        pairs = 2 * rows * length * distances * width
        if name == "sinusoidal_relative":
            return cls(in_blocks=2 * layers * pairs, constant=2 * layers * pairs)
        if name == "relative":
            return cls(in_blocks=(1 + has_values(sizes)) * layers * pairs)
        if name == "transformer_xl":
            projection = 2 * distances * width**2
            return cls(in_blocks=layers * (pairs + projection), constant=layers * projection)
        if name == "deberta":
            return cls(in_blocks=layers * (2 * pairs + 2 * distances * 3 * width**2))
        if name == "tupe":
            return cls(once=2 * 2 * length * width**2 + 2 * length**2 * width)
        return cls()


@functools.lru_cache(maxsize=8)
def _scheme_of(sizes):
    """A scheme as the model has it, and how many it has. It is made to be asked: no formula is written twice."""
    import tensorflow as tf

    sizes_of_scheme = SimpleNamespace(
        head_dim=sizes.hidden_dim // sizes.num_heads,
        num_heads=sizes.num_heads,
        hidden_dim=sizes.hidden_dim,
        embedding_dim=sizes.embedding_dim,
        max_sequence_length=sizes.max_sequence_length,
        max_wavelength=10000.0,
        masking="bidirectional",
        # draws nothing at random, so that the model that is made later begins with the same weights
        initializer=keras.initializers.Zeros(),
    )
    with tf.device("CPU:0"):
        [scheme] = make_position_schemes(
            sizes.position_scheme, 1, sizes_of_scheme, sizes.position_options
        )
        scheme.build()
    return scheme, sizes.num_layers if scheme.per_layer else 1
