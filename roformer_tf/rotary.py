"""Rotary position embedding (RoPE): the mathematics, as pure functions.

Reference: RoFormer, arXiv 2104.09864, section 3.2 and equations 12 to 16, and 34;
the original code is `apply_rotary_position_embeddings` and `SinusoidalPositionEmbedding` of
bert4keras.

A feature vector of even size `head_dim` is `head_dim / 2` pairs, and pair i of a token at position
m is rotated by the angle m * theta_i, theta_i = base^(-2i / head_dim). The *layout* defines which
features form a pair:

* `"interleaved"`: pair i is (2i, 2i + 1), as in the paper and in the original checkpoints;
* `"half"`: pair i is (i, i + head_dim / 2), as in GPT-NeoX and LLaMA. It is faster (no strided
  access), so the layers compute in it. Loading an original checkpoint permutes columns with
  `interleaved_to_half`.

Angles are exact: a float32 product m * theta_i would be wrong by 0.06 radians at m = 1,000,000, so
the angle is reduced modulo 2 pi on the way (see `angles`). Nothing positional is ever computed in a
lower dtype than float32. `roformer_tf.rope_scaling` slows the frequencies down for texts longer
than a model was trained on.
"""

import math

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_one_of
from roformer_tf.portable import is_portable

LAYOUTS = ("interleaved", "half")

# 12 significant bits times 12 fit the 24 of float32, so these products have no rounding error.
_UNIT = 2.0**12


def frequencies(head_dim, base=10000.0):
    """Returns theta_i = base^(-2i / head_dim), the angle of pair i per position.

    Args:
        head_dim: even int. The size of one attention head.
        base: float. 10000 in the paper (`max_wavelength` of the models).

    Returns:
        NumPy float64 array of shape `(head_dim // 2,)`, in radians per position.

    Raises:
        ValueError: If `head_dim` is not a positive even integer, or `base` not positive and finite.

    Example:

    >>> from roformer_tf import rotary
    >>> rotary.frequencies(4)
    array([1.  , 0.01])

    Reference: equation 15 of arXiv 2104.09864.
    """
    _check_head_dim(head_dim)
    if not 0 < base < float("inf"):
        raise ValueError(f"`base` must be positive and finite. Received: base={base}")
    return np.power(float(base), -np.arange(0, head_dim, 2, dtype="float64") / head_dim)


def angles(positions, theta):
    """Computes the angles `positions * theta`, reduced to one turn.

    The product is computed in parts that float32 holds exactly. Whole turns are dropped from every
    part before the parts are added. For any position up to 2^24 in absolute value the result is
    within 2e-6 radians of the true angle. Frequencies in a tensor (learned, or scaled by the current
    length) are first rounded to float32, once for all positions; the result is as close to the
    angle of the rounded frequency. Gradients flow to such frequencies.

    Args:
        positions: Tensor of any shape, whole or fractional, negative allowed.
        theta: Frequencies below 2 pi, shape `(head_dim // 2,)`: NumPy array or float32 tensor. A
            tensor may also have `positions.shape` before that, or 1 instead.

    Returns:
        float32 tensor of shape `positions.shape + (head_dim // 2,)`, in radians.

    Example:

    >>> import numpy as np
    >>> from roformer_tf import rotary
    >>> m = np.array([0, 1, 1_000_000])
    >>> theta = rotary.frequencies(64)
    >>> error = np.cos(np.array(rotary.angles(m, theta))) - np.cos(m[:, None] * theta)
    >>> bool(np.abs(error).max() < 2e-6)
    True

    Reference: equation 16 of arXiv 2104.09864.
    """
    dtype = getattr(positions, "dtype", "float32")
    are_whole = "int" in keras.backend.standardize_dtype(dtype)
    positions = ops.expand_dims(ops.cast(positions, "float32"), -1)
    # positions = high + low + fraction: multiples of 2^12, whole numbers below 2^12, and below 1
    whole = positions if are_whole else ops.floor(positions)
    high = ops.trunc(whole / _UNIT) * _UNIT
    low = whole - high
    turns, first, second, rest = _pieces(theta)
    # `high * first` is a whole number; the products of this sum are at most 1/2, and need not be
    # reduced by themselves
    small = whole * rest + low * second
    if not are_whole:
        small = small + (positions - whole) * turns
    # small sums keep small errors
    parts = _reduced(small) + _reduced(low * first) + _reduced(high * second)
    return _reduced(parts) * (2 * math.pi)


def _reduced(turns):
    """Returns the same angle, at most half a turn."""
    return turns - ops.round(turns)


def _pieces(theta):
    """Returns turns per position, and a sum of them: 12 bits, the next 12 bits, and the rest.

    Returns:
        float32 `turns, first, second, rest`. If `theta` is a tensor, its gradient flows through
        `turns` and `rest`.
    """
    fixed = isinstance(theta, np.ndarray)
    turns = (theta if fixed else ops.cast(theta, "float32")) * (0.5 / math.pi)
    round = np.round if fixed else ops.round
    first = round(turns * _UNIT) / _UNIT
    second = round((turns - first) * _UNIT**2) / _UNIT**2
    return [ops.cast(piece, "float32") for piece in (turns, first, second, turns - first - second)]


def tables(positions, theta):
    """Computes cosines and signed sines for `rotate`, once per forward pass, not once per layer.

    Args:
        positions: Tensor `(..., length)`, whole or fractional.
        theta: Frequencies; see `angles`.

    Returns:
        `(cos, sin)`, float32 tensors of shape `(..., length, head_dim)`. The first half of `sin` is
        negated, so that `rotate` is two products and a sum.

    Example:

    >>> import numpy as np
    >>> from roformer_tf import rotary
    >>> cos, sin = rotary.tables(np.arange(3), rotary.frequencies(4))
    >>> tuple(cos.shape), np.array(sin)[1].round(4).tolist()
    ((3, 4), [-0.8414999842643738, -0.009999999776482582, 0.8414999842643738, 0.009999999776482582])
    """
    angle = angles(positions, theta)
    cos, sin = ops.cos(angle), ops.sin(angle)
    return ops.concatenate([cos, cos], axis=-1), ops.concatenate([-sin, sin], axis=-1)


def rotate(x, cos, sin, layout="half"):
    """Rotates every pair of features of `x` by its angle: R_m x.

    Computed in float32 and rounded to the dtype of `x` once, at the end.

    Args:
        x: Tensor `(..., length, head_dim)`.
        cos, sin: `tables(...)`, broadcast against `x`.
        layout: `"half"` or `"interleaved"`, the layout of the features of `x` (the tables are the
            same for both).

    Returns:
        Tensor of the shape and dtype of `x`.

    Raises:
        ValueError: If `layout` is unknown.

    Example: a rotation keeps lengths, and the product of two rotated vectors depends on their
    distance only.

    >>> import numpy as np
    >>> from roformer_tf import rotary
    >>> theta = rotary.frequencies(8)
    >>> q, k = np.random.default_rng(0).normal(size=(2, 1, 8)).astype("float32")
    >>> def score(m, n):
    ...     rotated = [rotary.rotate(x, *rotary.tables([p], theta)) for x, p in ((q, m), (k, n))]
    ...     return float(np.sum(np.array(rotated[0]) * np.array(rotated[1])))
    >>> abs(score(3, 1) - score(1003, 1001)) < 1e-5
    True

    Reference: equation 34 of arXiv 2104.09864.
    """
    check_one_of("layout", layout, LAYOUTS)
    dtype = x.dtype
    x = ops.cast(x, "float32")
    if layout == "half":
        half = x.shape[-1] // 2
        # `roll` wakes all threads even for a single token, and LiteRT does not have it
        if x.shape[-2] == 1 or is_portable():
            partner = ops.concatenate([x[..., half:], x[..., :half]], axis=-1)
        else:
            partner = ops.roll(x, shift=half, axis=-1)
    else:
        order = half_to_interleaved(x.shape[-1])
        cos, sin = ops.take(cos, order, axis=-1), ops.take(sin, order, axis=-1)
        partner = ops.take(x, np.arange(x.shape[-1]) ^ 1, axis=-1)
    return ops.cast(x * cos + partner * sin, dtype)


def rotate_inverse(x, cos, sin, layout="half"):
    """Undoes `rotate`: a rotation by the negative angles, R_m^T x = R_{-m} x.

    Args:
        x: Tensor `(..., length, head_dim)`.
        cos, sin: The tables that `rotate` was called with.
        layout: `"half"` or `"interleaved"`.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf import rotary
    >>> x = np.ones((5, 4), "float32")
    >>> cos, sin = rotary.tables(np.arange(5), rotary.frequencies(4))
    >>> back = rotary.rotate_inverse(rotary.rotate(x, cos, sin), cos, sin)
    >>> bool(np.allclose(np.array(back), x, atol=1e-6))
    True
    """
    return rotate(x, cos, -sin, layout=layout)


def decay_bound(distances, theta):
    """Computes the relative upper bound of figure 2 on a query-key product at a distance.

    It is the mean of |S_j| over j = 1 … head_dim / 2, with S_j the sum over i < j of
    exp(sqrt(-1) * distance * theta_i).

    Args:
        distances: Array of any shape.
        theta: Frequencies, NumPy array of shape `(head_dim // 2,)`.

    Returns:
        NumPy float64 array of the shape of `distances`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf import rotary
    >>> rotary.decay_bound([0, 10, 100], rotary.frequencies(128)).round(2).tolist()
    [32.5, 17.95, 10.23]

    Reference: section 3.4.3, equations 35 to 37 of arXiv 2104.09864.
    """
    angle = np.asarray(distances, "float64")[..., None] * theta
    return np.abs(np.cumsum(np.exp(1j * angle), axis=-1)).mean(-1)


def interleaved_to_half(head_dim):
    """Returns the order from the interleaved to the half layout: `x_half = x_interleaved[order]`.

    Applied to the columns of the query and key projections of each head it makes an interleaved
    checkpoint compute the same attention scores in the half layout.

    Args:
        head_dim: even int.

    Returns:
        NumPy int array of shape `(head_dim,)`: 0, 2, 4, …, 1, 3, 5, …

    Example:

    >>> from roformer_tf import rotary
    >>> rotary.interleaved_to_half(6).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    _check_head_dim(head_dim)
    return np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])


def half_to_interleaved(head_dim):
    """Returns the inverse of `interleaved_to_half`: `x_interleaved = x_half[order]`.

    Args:
        head_dim: even int.

    Returns:
        NumPy int array of shape `(head_dim,)`.

    Example:

    >>> from roformer_tf import rotary
    >>> rotary.half_to_interleaved(6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return np.argsort(interleaved_to_half(head_dim))


def _check_head_dim(head_dim):
    if not isinstance(head_dim, (int, np.integer)) or head_dim <= 0 or head_dim % 2:
        raise ValueError(
            "`head_dim` must be a positive even integer, since RoPE rotates pairs of features. "
            f"Received: head_dim={head_dim!r}"
        )
