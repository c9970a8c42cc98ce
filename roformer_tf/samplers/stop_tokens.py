"""Functions for stop tokens."""

import numbers

from keras import ops


def with_min_length(next, min_length, stop_token_ids, mask=None):
    """Wraps a sampler's `next` so that no stop token comes before `min_length` new tokens.

    It sets the logits of the stop tokens to minus infinity, so it works with every sampler, which
    then uses the model's distribution without these tokens.

    Args:
        next: `next(prompt, cache, index) -> (logits, hidden_states, cache)`, as
            `keras_hub.samplers.Sampler` calls it.
        min_length: int or scalar integer tensor. Minimum number of new tokens before a stop token.
            Neither tokens of the prompt nor the stop token count (fairseq's `--min-len`, Hugging
            Face's `min_new_tokens`).
        stop_token_ids: list or tuple of ints, or `None`.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt, as the sampler gets
            it. `None` if there is no prompt.

    Returns:
        A function like `next`, or `next` itself if it needs no change. It may be called with
        several beams for each sequence of `mask`.

    Raises:
        ValueError: If `min_length` is negative.

    Example:

    >>> import keras_hub
    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.samplers import with_min_length
    >>> def next(prompt, cache, index):  # the stop token, 3, is always the likeliest
    ...     return ops.one_hot(0 * prompt[:, 0] + 3, 5), None, cache
    >>> prompt, mask = np.array([[2, 4, 0, 0, 0, 0]]), np.array([[1, 1, 0, 0, 0, 0]], "bool")
    >>> sampler, options = keras_hub.samplers.GreedySampler(), {"index": 2, "mask": mask}
    >>> np.array(sampler(next, prompt, stop_token_ids=[3], **options)).tolist()
    [[2, 4, 3, 0, 0, 0]]
    >>> later = with_min_length(next, 2, [3], mask)
    >>> np.array(sampler(later, prompt, stop_token_ids=[3], **options)).tolist()
    [[2, 4, 0, 0, 3, 0]]
    """
    is_number = isinstance(min_length, numbers.Integral)
    if is_number and min_length < 0:
        raise ValueError(f"`min_length` must not be negative. Received: min_length={min_length}")
    if is_number and min_length == 0 or not stop_token_ids:
        return next

    def next_of_min_length(prompt, cache, index):
        logits, hidden_states, cache = next(prompt, cache, index)
        vocabulary_size = ops.shape(logits)[-1]
        is_stop = is_any_of(ops.arange(vocabulary_size, dtype="int32"), stop_token_ids)
        if mask is None:
            prompt_mask = ops.zeros_like(prompt[:1], dtype="bool")
        else:
            prompt_mask = ops.cast(mask, "bool")
        batch_size, length = ops.shape(prompt_mask)
        is_earlier = ops.arange(length, dtype="int32") < ops.cast(index, "int32")
        is_new = ops.logical_and(is_earlier, ops.logical_not(prompt_mask))
        too_short = ops.sum(ops.cast(is_new, "int32"), axis=1) < min_length  # (batch,)
        forbidden = ops.logical_and(is_stop, too_short[:, None, None])  # (batch, beam, vocabulary)
        # The beams of a sequence follow each other.
        beams = ops.reshape(logits, (batch_size, -1, vocabulary_size))
        beams = ops.where(forbidden, ops.cast(float("-inf"), logits.dtype), beams)
        return ops.reshape(beams, ops.shape(logits)), hidden_states, cache

    return next_of_min_length


def valid_token_mask(tokens, mask, stop_token_ids, min_ends=1, min_length=0):
    """Returns the mask of the tokens of prompt and text, up to the stop token that ends it.

    Samplers continue until all sequences have ended, so anything may follow the end of one.

    Args:
        tokens: int tensor `(batch, length)`, as a sampler returns it.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt, which end nothing.
        stop_token_ids: list or tuple of ints, or `None` if nothing ends a text.
        min_ends: int. Which stop token ends a text: 1 for the first.
        min_length: int. Minimum number of new tokens, stop token included. An earlier stop token
            does not end the text. Both as in `OriginalBeamSampler`.

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

    def count_so_far(condition):
        return ops.cumsum(ops.cast(condition, "int32"), axis=-1)

    may_end = ops.logical_and(count_so_far(stops) >= min_ends, count_so_far(new) >= min_length)
    ends = ops.logical_and(stops, may_end)
    return count_so_far(ends) - ops.cast(ends, "int32") == 0


def remove_stop_tokens(tokens, mask, stop_token_ids, vocabulary_size):
    """Replaces stop tokens at the positions to fill by another token.

    KerasHub's samplers stop as soon as each sequence has a stop token outside its prompt, even if
    it is only a filler.

    Args:
        tokens: int tensor `(batch, length)`.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt.
        stop_token_ids: list or tuple of ints, or `None`.
        vocabulary_size: int. Size of the vocabulary.

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


def is_any_of(tokens, token_ids):
    """Returns a bool tensor, `True` where `tokens` is in a list of ids (or in none, for `None`)."""
    found = ops.zeros_like(tokens, dtype="bool")
    for token_id in token_ids or ():
        found = ops.logical_or(found, ops.equal(tokens, token_id))
    return found
