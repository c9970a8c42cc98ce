import keras
from keras import ops

from roformer_tf.samplers.beam_loop import NO_SCORE, BeamLoop, take


@keras.saving.register_keras_serializable(package="roformer_tf")
class OriginalBeamSampler(BeamLoop):
    """The beam search of the original, bert4keras' `AutoRegressiveDecoder.beam_search`, for whole batches.

    In each step the best `num_beams` continuations are kept. If the very best one is finished, it is the answer.
    Otherwise those that are finished are thrown away, and from then on there are so many fewer beams. So a finished
    hypothesis never waits for a better one, scores of different lengths are not compared, and there is no length
    penalty. `BeamSearchSampler` searches better; this one gives the texts that the original gives.

    A token's score is log(p + 1e-12), as in the original.

    Args:
        num_beams: positive int, the original's `topk`.
        min_length: int, the original's `minlen`: a hypothesis with fewer new tokens, stop token included, is not
            finished by its stop token but goes on. (`with_min_length` does not let it make one.)
        min_ends: positive int, which stop token finishes a hypothesis: 2 for texts of two parts that end with one each.
        **kwargs: of `keras_hub.samplers.Sampler` (`temperature`).

    Call arguments:
        As of `BeamSearchSampler`. The original's `maxlen` is the room in the row; its `start_id`, where it is not
        `None`, is the last token of the prompt, and counts in `minlen` there but not here.

    Returns:
        Int tensor `(batch, length)`, the answer of each row; after its stop token the row is as it was given.

    Raises:
        ValueError: if `num_beams` or `min_ends` is not positive, or `min_length` is negative.

    Example:

    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.samplers import OriginalBeamSampler
    >>> after_each_token = [[0, 0.3, 0.4, 0.3], [0, 1, 0, 0], [0, 0.4, 0.3, 0.3], [0, 1, 0, 0]]  # 0 starts, 1 stops
    >>> table = np.log(np.array(after_each_token, "float32") + 1e-9)
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

    def first_memory(self, beams):
        """How many beams a row still has, and whether it has its answer, which is then its first one."""
        return {
            "left": ops.full_like(beams["ends"][:, 0], self.num_beams),
            "answered": ops.zeros_like(beams["ends"][:, 0], "bool"),
        }

    def choose(self, grown, memory, made):
        best = {name: x[:, : self.num_beams] for name, x in grown.items()}
        place = ops.arange(self.num_beams, dtype="int32")
        kept = place < memory["left"][:, None]
        finished = ops.logical_and(best.pop("stops"), best["ends"] >= self.min_ends)
        finished = ops.logical_and(finished, ops.logical_and(kept, made >= self.min_length))
        answered = finished[:, 0]
        goes_on = ops.where(answered[:, None], place == 0, ops.logical_and(kept, ~finished))
        best["scores"] = ops.where(goes_on, best["scores"], NO_SCORE)
        left = memory["left"] - ops.sum(ops.cast(finished, "int32"), axis=1)
        return best, {"left": left, "answered": answered}

    def done(self, beams, memory, made, most):
        return ops.logical_or(memory["answered"], ops.equal(made, most)[:, 0])

    def results(self, beams, memory, most):
        best = ops.argmax(beams["scores"], axis=1)[:, None]
        return take(beams["tokens"], best)[:, 0]

    def get_config(self):
        return {**super().get_config(), "min_length": self.min_length}
