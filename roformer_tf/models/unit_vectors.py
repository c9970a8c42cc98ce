from keras import ops


def unit_vectors(vectors):
    """Vectors `(..., size)` divided by their lengths; those of length 0 stay as they are.

    Reference: `K.l2_normalize`, which the original's losses have.
    """
    return vectors * ops.rsqrt(
        ops.maximum(ops.sum(ops.square(vectors), axis=-1, keepdims=True), 1e-12)
    )
