from keras import ops


def relative_shift(x):
    """From numbers for each query and distance to numbers for each query and key, without a gather.

    Args:
        x: tensor `(..., length, 2 * length - 1)`; column `c` belongs to the distance `key - query = c - (length - 1)`.

    Returns:
        Tensor `(..., length, length)`: `y[..., i, j] = x[..., i, j - i + length - 1]`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers.relative_shift import relative_shift
    >>> distances = np.array([[-2, -1, 0, 1, 2]] * 3)
    >>> np.array(relative_shift(distances)).tolist()
    [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]

    Reference: the "skew" of Huang et al., arXiv 1809.04281, and `rel_shift` of Transformer-XL's code.
    """
    leading, length = tuple(ops.shape(x)[:-2]), ops.shape(x)[-2]
    row = _row(length)
    # read on in rows one shorter, and the entries of a key stand below each other
    x = ops.reshape(x, (*leading, length * (2 * length - 1)))
    x = x[..., length - 1 : length - 1 + length * row]
    return ops.reshape(x, (*leading, length, row))[..., :length]


def relative_unshift(x):
    """From numbers for each query and key to numbers for each query and distance; undoes `relative_shift`.

    Args:
        x: tensor `(..., length, length)`.

    Returns:
        Tensor `(..., length, 2 * length - 1)`: `y[..., i, c] = x[..., i, c + i - (length - 1)]`, and 0 where there is
        no such key.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers.relative_shift import relative_unshift
    >>> np.array(relative_unshift(np.array([[1, 2], [3, 4]]))).tolist()
    [[0, 1, 2], [3, 4, 0]]
    """
    leading, length = tuple(ops.shape(x)[:-2]), ops.shape(x)[-2]
    row, columns = _row(length), 2 * length - 1
    none = [[0, 0]] * len(leading)
    x = ops.pad(x, [*none, [0, 0], [0, row - length]])
    x = ops.reshape(x, (*leading, length * row))
    x = ops.pad(x, [*none, [length - 1, length * (columns - row) - (length - 1)]])
    return ops.reshape(x, (*leading, length, columns))


def _row(length):
    """`2 * length - 2`; 1 for a single token."""
    if isinstance(length, int):
        return max(2 * length - 2, 1)
    return ops.maximum(2 * length - 2, 1)
