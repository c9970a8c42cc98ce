import keras
from keras import ops

from roformer_tf.samplers.beam_search_sampler import NO_SCORE, BeamLoop, take


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalBeamSampler(BeamLoop):
    """The original's beam search, bert4keras' `AutoRegressiveDecoder.beam_search`, for batches.

    Each step keeps the best `num_beams` continuations. If the best one is finished, it is the
    result. Otherwise finished ones are dropped, which leaves fewer beams. So scores of different
    lengths are never compared, and there is no length penalty. `BeamSearchSampler` searches better;
    this one reproduces the texts of the original. The score of a token is log(p + 1e-12).

    Args:
        num_beams: int. Number of beams, the original's `topk`.
        min_length: int. The original's `minlen`: a stop token does not finish a hypothesis with
            fewer new tokens, stop token included. (`with_min_length` prevents such a token.)
        min_ends: int. Which stop token finishes a hypothesis: 2 for texts of two parts that end
            with one each.
        **kwargs: Arguments of `keras_hub.samplers.Sampler` (`temperature`).

    Call arguments:
        See `BeamSearchSampler`. The original's `maxlen` is the number of positions to fill. Its
        `start_id`, if not `None`, is the last token of the prompt; there it counts in `minlen`,
        here it does not.

    Returns:
        Int tensor `(batch, length)`, the result of each sequence. After its stop token a sequence
        is as in `prompt`.

    Raises:
        ValueError: If `num_beams`, `min_ends` or `temperature` is not positive, or `min_length` is
            negative.

    Example:

    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.samplers import OriginalBeamSampler
    >>> # the probabilities after each token; 0 starts, 1 stops
    >>> table = np.float32([[0, 0.3, 0.4, 0.3], [0, 1, 0, 0], [0, 0.4, 0.3, 0.3], [0, 1, 0, 0]])
    >>> table = np.log(table + 1e-9)
    >>> def next(prompt, cache, index):
    ...     return ops.take(table, prompt[:, index - 1], axis=0), None, cache
    >>> prompt, mask = np.array([[0, 0, 0, 0, 0]]), np.array([[1, 0, 0, 0, 0]], "bool")
    >>> for num_beams in (1, 3):  # 2 1 has 0.4 * 0.4, 3 1 has 0.3 * 1
    ...     sampler = OriginalBeamSampler(num_beams)
    ...     print(np.array(sampler(next, prompt, index=1, mask=mask, stop_token_ids=[1])).tolist())
    [[0, 2, 1, 0, 0]]
    [[0, 3, 1, 0, 0]]

    Reference: `AutoRegressiveDecoder.beam_search` of bert4keras 0.11.5 (`snippets.py`).
    """

    def __init__(self, num_beams=1, min_length=1, min_ends=1, **kwargs):
        super().__init__(num_beams, min_ends, **kwargs)
        if min_length < 0:
            raise ValueError(
                f"`min_length` must not be negative. Received: min_length={min_length}"
            )
        self.min_length = min_length

    def token_scores(self, logits):
        return ops.log(self.compute_probabilities(logits) + 1e-12)

    def build_finished(self, beams):
        """Returns how many beams remain, and whether the first one is the result."""
        return {
            "remaining": ops.full_like(beams["ends"][:, 0], self.num_beams),
            "has_result": ops.zeros_like(beams["ends"][:, 0], "bool"),
        }

    def choose(self, grown, finished, made):
        best = {name: x[:, : self.num_beams] for name, x in grown.items()}
        rank = ops.arange(self.num_beams, dtype="int32")
        kept = rank < finished["remaining"][:, None]
        ends = ops.logical_and(best.pop("stops"), best["ends"] >= self.min_ends)
        ends = ops.logical_and(ends, ops.logical_and(kept, made >= self.min_length))
        has_result = ends[:, 0]
        grows = ops.where(has_result[:, None], rank == 0, ops.logical_and(kept, ~ends))
        best["scores"] = ops.where(grows, best["scores"], NO_SCORE)
        remaining = finished["remaining"] - ops.sum(ops.cast(ends, "int32"), axis=1)
        return best, {"remaining": remaining, "has_result": has_result}

    def done(self, beams, finished, made, most):
        return ops.logical_or(finished["has_result"], ops.equal(made, most)[:, 0])

    def results(self, beams, finished, most):
        best = ops.argmax(beams["scores"], axis=1)[:, None]
        return take(beams["tokens"], best)[:, 0]

    def get_config(self):
        return {**super().get_config(), "min_length": self.min_length}
