from keras import ops


def with_min_length(next, min_length, stop_token_ids, mask=None):
    """A sampler's `next` that makes no stop token before `min_length` other new tokens are there.

    It sets the logits of the stop tokens to minus infinity, so it serves every sampler: what they draw or search is
    the model's distribution without these tokens.

    Args:
        next: `next(prompt, cache, index) -> (logits, hidden_states, cache)`, as `keras_hub.samplers.Sampler` calls it.
        min_length: int, the least number of new tokens of a row before its stop token. Tokens of the prompt do not
            count, nor does the stop token (fairseq's `--min-len`, Hugging Face's `min_new_tokens`).
        stop_token_ids: list or tuple of ints, or `None`.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt, as the sampler gets it; `None` if the
            rows have no prompt.

    Returns:
        A function like `next`; `next` itself if there is nothing to forbid. It may be called with several beams for
        each row of `mask`.

    Raises:
        ValueError: if `min_length` is negative.

    Example:

    >>> import keras_hub
    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.samplers import with_min_length
    >>> def next(prompt, cache, index):  # a model to which the stop token, 3, is always the likeliest
    ...     return ops.one_hot(0 * prompt[:, 0] + 3, 5), None, cache
    >>> prompt, mask = np.array([[2, 4, 0, 0, 0, 0]]), np.array([[1, 1, 0, 0, 0, 0]], "bool")
    >>> sampler, options = keras_hub.samplers.GreedySampler(), {"index": 2, "mask": mask}
    >>> np.array(sampler(next, prompt, stop_token_ids=[3], **options)).tolist()
    [[2, 4, 3, 0, 0, 0]]
    >>> later = with_min_length(next, 2, [3], mask)
    >>> np.array(sampler(later, prompt, stop_token_ids=[3], **options)).tolist()
    [[2, 4, 0, 0, 3, 0]]
    """
    if min_length < 0:
        raise ValueError(f"`min_length` must not be negative. Received: min_length={min_length}")
    if not min_length or not stop_token_ids:
        return next

    def next_of_min_length(prompt, cache, index):
        logits, hidden_states, cache = next(prompt, cache, index)
        vocabulary = ops.arange(ops.shape(logits)[-1], dtype="int32")
        stops = is_any_of(vocabulary, stop_token_ids)  # (vocabulary,)
        if mask is None:
            prompts = ops.zeros_like(prompt[:1], dtype="bool")
        else:
            prompts = ops.cast(mask, "bool")
        before = ops.arange(ops.shape(prompts)[1], dtype="int32") < ops.cast(index, "int32")
        new = ops.logical_and(before, ops.logical_not(prompts))
        early = ops.sum(ops.cast(new, "int32"), axis=1) < min_length  # (row,)
        forbidden = ops.logical_and(stops, early[:, None, None])  # (row, beam, vocabulary)
        # the beams of a row stand one after the other
        beams = ops.reshape(logits, (ops.shape(prompts)[0], -1, ops.shape(logits)[-1]))
        beams = ops.where(forbidden, ops.cast(float("-inf"), logits.dtype), beams)
        return ops.reshape(beams, ops.shape(logits)), hidden_states, cache

    return next_of_min_length


def is_any_of(tokens, token_ids):
    """Where `tokens` is one of the ids of a list (`None` is the empty one): bool tensor of its shape."""
    found = ops.zeros_like(tokens, dtype="bool")
    for token_id in token_ids or ():
        found = ops.logical_or(found, ops.equal(tokens, token_id))
    return found
