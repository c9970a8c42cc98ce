import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.samplers.stop_tokens import is_any_of

PENALTY_FORMS = ("fairseq", "gnmt")
# The score of a missing hypothesis. A NumPy number, because `ops.where` of two Python numbers has the
# dtype `keras.config.floatx()`.
NO_SCORE = np.float32("-inf")


class BeamLoop(keras_hub.samplers.Sampler):
    """Base class of the beam searches: the loop over the positions, and the hypotheses.

    Hypotheses are a dictionary of `"tokens"` `(batch, beam, length)`, `"scores"` `(batch, beam)`,
    the sum of the scores of their new tokens, and `"ends"` `(batch, beam)`, their number of stop
    tokens. The *beams* are the hypotheses that still grow, `num_beams` for each sequence. A missing
    one has a score of minus infinity.

    A sequence waits unchanged at the positions of its prompt and after it is done, so its result
    does not depend on the other sequences of the batch.

    A subclass has a dictionary `finished` of tensors `(batch, ...)` as its state, and implements

    * `build_finished(beams)`: its first value;
    * `choose(grown, finished, made)`: the new beams with their `"parents"`, chosen from the
      continuations, and the new `finished`; `made` `(batch, 1)` is the number of new tokens;
    * `done(beams, finished, made, most)`: bool `(batch,)`, whether a sequence is done with `made`
      of `most` new tokens;
    * `results(beams, finished, most)`: what to return.
    """

    def __init__(self, num_beams, min_ends=1, **kwargs):
        super().__init__(**kwargs)
        check_positive_integer("num_beams", num_beams)
        check_positive_integer("min_ends", min_ends)
        if not self.temperature > 0:
            raise ValueError(
                f"`temperature` must be positive. Received: temperature={self.temperature}"
            )
        self.num_beams = num_beams
        self.min_ends = min_ends

    def __call__(
        self,
        next,
        prompt,
        cache=None,
        index=0,
        mask=None,
        stop_token_ids=None,
        hidden_states=None,
        model=None,
    ):
        prompt = ops.convert_to_tensor(prompt)
        batch_size, length = ops.shape(prompt)
        mask = ops.zeros_like(prompt, "bool") if mask is None else ops.cast(mask, "bool")
        # (batch, length + 1): number of new tokens before a position
        made = ops.cumsum(ops.cast(ops.logical_not(mask), "int32"), axis=1)
        made = ops.pad(made, ((0, 0), (1, 0)))
        index = ops.cast(index, "int32")
        cache = () if cache is None else cache  # loop variables cannot be `None`

        def first_beams(x):
            return ops.repeat(x, self.num_beams, axis=0)

        beam = ops.zeros((batch_size, 1), "int32") + ops.arange(self.num_beams, dtype="int32")
        beams = {
            "tokens": ops.reshape(first_beams(prompt), (-1, self.num_beams, length)),
            "scores": ops.where(beam == 0, 0.0, NO_SCORE),  # all are equal at first, so one counts
            "ends": ops.zeros_like(beam),
        }

        def done(index, beams, finished):
            return self.done(beams, finished, made[:, index][:, None], made[:, -1:])

        def cond(index, cache, beams, finished):
            return ops.logical_not(ops.all(done(index, beams, finished)))

        def body(index, cache, beams, finished):
            waits = ops.logical_or(mask[:, index], done(index, beams, finished))
            logits, _, cache = next(ops.reshape(beams["tokens"], (-1, length)), cache, index)
            grown = self.grow(beams, logits, index, stop_token_ids)
            chosen, new_finished = self.choose(grown, finished, made[:, index + 1][:, None])
            parents = ops.where(waits[:, None], beam, chosen.pop("parents"))

            def take_cache(x):
                x = ops.reshape(x, (-1, self.num_beams, *ops.shape(x)[1:]))
                x = take(x, parents)
                return ops.reshape(x, (-1, *ops.shape(x)[2:]))

            cache = keras.tree.map_structure(take_cache, cache)
            beams = where_rows(waits, beams, chosen)
            finished = where_rows(waits, finished, new_finished)
            return index + 1, cache, beams, finished

        _, _, beams, finished = self.run_loop(
            cond,
            body,
            loop_vars=(
                index,
                keras.tree.map_structure(first_beams, cache),
                beams,
                self.build_finished(beams),
            ),
            maximum_iterations=length - index,
            model=model,
        )
        return self.results(beams, finished, made[:, -1:])

    def token_scores(self, logits):
        """Returns the log probabilities of the next token, float32."""
        return keras.activations.log_softmax(ops.cast(logits, "float32") / self.temperature)

    def grow(self, beams, logits, index, stop_token_ids):
        """Returns the best continuations of the beams by one token, best first.

        At least `num_beams` of them do not stop. The dictionary has two more entries: `"stops"`,
        whether the last token is a stop token, and `"parents"`, the beam it continues.
        """
        vocabulary_size = ops.shape(logits)[-1]
        scores = ops.reshape(self.token_scores(logits), (-1, self.num_beams, vocabulary_size))
        scores = ops.reshape(
            beams["scores"][..., None] + scores, (-1, self.num_beams * vocabulary_size)
        )
        width = self.num_beams * min(1 + len(stop_token_ids or ()), vocabulary_size)
        scores, best = ops.top_k(scores, width)
        best = ops.cast(best, "int32")
        parents, last = best // vocabulary_size, best % vocabulary_size
        tokens = take(beams["tokens"], parents)
        last = ops.cast(last, tokens.dtype)
        stops = is_any_of(last, stop_token_ids)
        return {
            "tokens": ops.slice_update(tokens, (0, 0, index), last[..., None]),
            "scores": scores,
            "ends": take(beams["ends"], parents) + ops.cast(stops, "int32"),
            "parents": parents,
            "stops": stops,
        }

    def get_config(self):
        return {**super().get_config(), "num_beams": self.num_beams, "min_ends": self.min_ends}


def take(x, chosen):
    """Returns the hypotheses `chosen` `(batch, count)` of a tensor `(batch, beam, ...)`."""
    batch_size, beams = ops.shape(x)[:2]
    indices = ops.arange(batch_size, dtype="int32")[:, None] * beams + ops.cast(chosen, "int32")
    return ops.take(ops.reshape(x, (-1, *ops.shape(x)[2:])), indices, axis=0)


def where_rows(condition, this, other):
    """Selects rows of two dictionaries of tensors `(batch, ...)` by a condition `(batch,)`."""
    return {
        name: ops.where(ops.reshape(condition, (-1,) + (1,) * (len(x.shape) - 1)), x, other[name])
        for name, x in this.items()
    }


@keras.saving.register_keras_serializable(package="roformer_tf")
class BeamSearchSampler(BeamLoop):
    """Beam search that keeps finished hypotheses and ranks them with a length penalty.

    A hypothesis with a stop token is finished and set aside, and another one continues instead of
    it. The result is the hypothesis with the highest

        score(Y) = log P(Y) / lp(Y)    lp(Y) = |Y|^alpha                 penalty_form="fairseq"
                                       lp(Y) = ((5 + |Y|) / 6)^alpha     penalty_form="gnmt"

    where |Y| is the number of new tokens *with* the stop token (as fairseq and Tensor2Tensor count)
    and without the prompt, and alpha is `length_penalty`. 0 compares log P itself, which favours
    short texts; 1 with `"fairseq"` compares the means per token; a larger alpha favours longer
    texts. Hypotheses that reach the maximum length are ranked in the same way.

    `keras_hub.samplers.BeamSampler` has no penalty, and continues hypotheses beyond their stop
    tokens.

    Each step ranks the continuations of all beams by log P. Finished ones count if they are among
    the best `num_beams`; the best `num_beams` others are the new beams (the rule of fairseq and
    Hugging Face). A sequence is done when no beam can win any more: log P only falls, so no beam
    can exceed its log P over the penalty of the longest text that fits. That is late for a large
    maximum length, so keep it small or use `early_stopping=True`.

    Args:
        num_beams: int. Number of beams.
        length_penalty: float. The exponent alpha.
        penalty_form: `"fairseq"` or `"gnmt"`.
        early_stopping: bool. With `True` a sequence is done as soon as `num_beams` hypotheses are
            finished, as in fairseq. A better one may be missed.
        min_ends: int. Which stop token finishes a hypothesis: 2 for texts of two parts that end
            with one each.
        return_all_beams: bool. Whether to return the best `num_beams` hypotheses with their scores.
            `generate` of a model uses the best one only, so leave it `False` there.
        **kwargs: Arguments of `keras_hub.samplers.Sampler` (`temperature`).

    Call arguments:
        next: `next(prompt, cache, index) -> (logits, hidden_states, cache)`, with logits
            `(batch * num_beams, vocabulary)` of the token at `index`. The beams of a sequence
            follow each other.
        prompt: int tensor `(batch, length)`, the sequences to fill.
        cache: structure of tensors `(batch, ...)`, or `None`. The sampler repeats it for the beams.
        index: int. First position to fill.
        mask: bool tensor `(batch, length)`, `True` at the tokens of the prompt, which stay and do
            not count.
        stop_token_ids: list or tuple of ints, or `None`.
        hidden_states: Unused.
        model: The model whose weights `next` reads (JAX needs it).

    Returns:
        Int tensor `(batch, length)`, the best hypothesis of each sequence. After its stop token a
        sequence is as in `prompt`. With `return_all_beams=True` a tuple of hypotheses
        `(batch, num_beams, length)` and float32 scores `(batch, num_beams)`, best first. Missing
        ones have a score of minus infinity.

    Raises:
        ValueError: If `num_beams`, `min_ends` or `temperature` is not positive, or `penalty_form`
            is unknown.

    Example:

    >>> import numpy as np
    >>> from keras import ops
    >>> from roformer_tf.samplers import BeamSearchSampler
    >>> # the probabilities after each token; 0 starts, 1 stops
    >>> table = np.float32([[0, 0.4, 0.6, 0], [0, 1, 0, 0], [0, 0.4, 0, 0.6], [0, 1, 0, 0]])
    >>> table = np.log(table + 1e-9)
    >>> def next(prompt, cache, index):
    ...     return ops.take(table, prompt[:, index - 1], axis=0), None, cache
    >>> prompt, mask = np.array([[0, 0, 0, 0, 0]]), np.array([[1, 0, 0, 0, 0]], "bool")
    >>> for alpha in (0.0, 1.0):  # the stop token at once has 0.4, the text 2 3 and it 0.6 * 0.6
    ...     sampler = BeamSearchSampler(num_beams=2, length_penalty=alpha)
    ...     print(np.array(sampler(next, prompt, index=1, mask=mask, stop_token_ids=[1])).tolist())
    [[0, 1, 0, 0, 0]]
    [[0, 2, 3, 1, 0]]

    Reference: Wu et al., "Google's Neural Machine Translation System" (arXiv 1609.08144), equation
    14, without its coverage penalty; Ott et al., fairseq (arXiv 1904.01038), which the RoFormer
    paper translated with (section 4.1: beam 4, length penalty 0.6).
    """

    def __init__(
        self,
        num_beams=4,
        length_penalty=0.6,
        penalty_form="fairseq",
        early_stopping=False,
        min_ends=1,
        return_all_beams=False,
        **kwargs,
    ):
        super().__init__(num_beams, min_ends, **kwargs)
        check_one_of("penalty_form", penalty_form, PENALTY_FORMS)
        self.length_penalty = length_penalty
        self.penalty_form = penalty_form
        self.early_stopping = early_stopping
        self.return_all_beams = return_all_beams

    def penalized(self, scores, length):
        """Divides scores by the penalty of hypotheses with `length` new tokens."""
        length = ops.cast(ops.maximum(length, 1), "float32")  # 0 in a sequence without room
        base = length if self.penalty_form == "fairseq" else (5.0 + length) / 6.0
        return scores / ops.power(base, self.length_penalty)

    def build_finished(self, beams):
        """Returns the finished hypotheses with their penalized scores, best first: none so far."""
        return {"tokens": beams["tokens"], "scores": ops.full_like(beams["scores"], NO_SCORE)}

    def choose(self, grown, finished, made):
        ends = ops.logical_and(grown.pop("stops"), grown["ends"] >= self.min_ends)
        scores = self.penalized(ops.where(ends, grown["scores"], NO_SCORE), made)
        new = {"tokens": grown["tokens"], "scores": scores}
        new = {name: x[:, : self.num_beams] for name, x in new.items()}
        growing = ops.where(ends, NO_SCORE, grown["scores"])
        _, best = ops.top_k(growing, self.num_beams)
        beams = {name: take(x, best) for name, x in {**grown, "scores": growing}.items()}
        return beams, self.best_of(finished, new)

    def best_of(self, these, others):
        """Returns the best `num_beams` of two dictionaries of hypotheses; `these` win ties."""
        both = {name: ops.concatenate([x, others[name]], axis=1) for name, x in these.items()}
        scores, best = ops.top_k(both["scores"], self.num_beams)
        return {"tokens": take(both["tokens"], best), "scores": scores}

    def done(self, beams, finished, made, most):
        worst = finished["scores"][:, -1]
        full = ops.equal(made, most)[:, 0]
        if self.early_stopping:
            return ops.logical_or(full, worst > NO_SCORE)
        # The penalty is monotonic in the length, so its extreme is at one of both ends.
        ends = ops.concatenate([ops.minimum(made + 1, most), most], axis=1)
        bound = ops.max(
            self.penalized(ops.max(beams["scores"], axis=1, keepdims=True), ends), axis=1
        )
        to_beat = worst if self.return_all_beams else finished["scores"][:, 0]
        return ops.logical_or(full, to_beat >= bound)

    def results(self, beams, finished, most):
        scores = self.penalized(beams["scores"], most)
        if self.early_stopping:  # the beams of a sequence that is done do not count
            scores = ops.where(finished["scores"][:, -1:] > NO_SCORE, NO_SCORE, scores)
        best = self.best_of(finished, {"tokens": beams["tokens"], "scores": scores})
        if self.return_all_beams:
            return best["tokens"], best["scores"]
        return best["tokens"][:, 0]

    def get_config(self):
        return {
            **super().get_config(),
            "length_penalty": self.length_penalty,
            "penalty_form": self.penalty_form,
            "early_stopping": self.early_stopping,
            "return_all_beams": self.return_all_beams,
        }
