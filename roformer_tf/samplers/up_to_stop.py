from keras import ops

from roformer_tf.samplers.min_length import is_any_of


def up_to_stop(tokens, mask, stop_token_ids, min_ends=1, min_length=0):
    """Which tokens of generated rows count: the prompt, and what follows up to the stop token that ends the text.

    Samplers go on until all rows have ended, so behind the end of a row may be anything.

    Args:
        tokens: int tensor `(batch, length)`, as a sampler returns it.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt; these end nothing.
        stop_token_ids: list or tuple of ints, or `None`, when nothing ends a text.
        min_ends: positive int, the number of the stop token that ends a text.
        min_length: int, how many new tokens, stop token included, a text has at least; a stop token before that does
            not end it. Both as in `OriginalBeamSampler`.

    Returns:
        Bool tensor `(batch, length)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.samplers import up_to_stop
    >>> tokens, mask = np.array([[2, 3, 7, 3, 8, 3]]), np.array([[1, 1, 0, 0, 0, 0]], "bool")
    >>> np.array(up_to_stop(tokens, mask, [3])).astype(int).tolist()
    [[1, 1, 1, 1, 0, 0]]
    >>> np.array(up_to_stop(tokens, mask, [3], min_ends=2)).astype(int).tolist()
    [[1, 1, 1, 1, 1, 1]]
    """
    new = ops.logical_not(ops.cast(mask, "bool"))
    stops = ops.logical_and(new, is_any_of(tokens, stop_token_ids))
    enough = ops.logical_and(count(stops) >= min_ends, count(new) >= min_length)
    ends = ops.logical_and(stops, enough)
    return count(ends) - ops.cast(ends, "int32") == 0


def count(condition):
    """How often a condition has held in a row so far."""
    return ops.cumsum(ops.cast(condition, "int32"), axis=-1)
