from keras import ops

from roformer_tf.samplers.min_length import is_any_of


def valid_token_mask(tokens, mask, stop_token_ids, min_ends=1, min_length=0):
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
    >>> from roformer_tf.samplers import valid_token_mask
    >>> tokens, mask = np.array([[2, 3, 7, 3, 8, 3]]), np.array([[1, 1, 0, 0, 0, 0]], "bool")
    >>> np.array(valid_token_mask(tokens, mask, [3])).astype(int).tolist()
    [[1, 1, 1, 1, 0, 0]]
    >>> np.array(valid_token_mask(tokens, mask, [3], min_ends=2)).astype(int).tolist()
    [[1, 1, 1, 1, 1, 1]]
    """
    new = ops.logical_not(ops.cast(mask, "bool"))
    stops = ops.logical_and(new, is_any_of(tokens, stop_token_ids))
    enough = ops.logical_and(count(stops) >= min_ends, count(new) >= min_length)
    ends = ops.logical_and(stops, enough)
    return count(ends) - ops.cast(ends, "int32") == 0


def remove_stop_tokens(tokens, mask, stop_token_ids, vocabulary_size):
    """Rows to be filled, without stop tokens in the places to be filled.

    KerasHub's samplers end as soon as each row has a stop token outside of its prompt, be it one that only fills it up.

    Args:
        tokens: int tensor `(batch, length)`.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt.
        stop_token_ids: list or tuple of ints, or `None`.
        vocabulary_size: positive int.

    Returns:
        Tensor like `tokens`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.samplers import remove_stop_tokens
    >>> rows, mask = np.array([[2, 3, 5, 0, 0]]), np.array([[1, 1, 1, 0, 0]], "bool")
    >>> np.array(remove_stop_tokens(rows, mask, stop_token_ids=[0, 3], vocabulary_size=6)).tolist()
    [[2, 3, 5, 1, 1]]
    """
    stops = set(stop_token_ids or ())
    filler = next((i for i in range(vocabulary_size) if i not in stops), None)
    if not stops or filler is None:
        return tokens
    return ops.where(ops.cast(mask, "bool"), tokens, ops.cast(filler, tokens.dtype))


def count(condition):
    """How often a condition has held in a row so far."""
    return ops.cumsum(ops.cast(condition, "int32"), axis=-1)
