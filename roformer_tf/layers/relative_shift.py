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
    # with a row one longer, the entries of one key are 2 * length - 1 places apart
    x = ops.pad(x, [[0, 0]] * (len(x.shape) - 1) + [[0, 1]])
    x = ops.reshape(x, (*leading, 2 * length * length))
    x = x[..., length - 1 : 2 * length * length - 1]
    return ops.reshape(x, (*leading, length, 2 * length - 1))[..., :length]
