import keras
import keras_hub
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.samplers.stop_tokens import is_any_of

NO_SCORE = float("-inf")  # the score of a missing hypothesis


class BeamLoop(keras_hub.samplers.Sampler):
    """Base class of the beam searches: the loop over the positions, and the hypotheses.

    Hypotheses are a dictionary of `"tokens"` `(batch, beam, length)`, `"scores"` `(batch, beam)`,
    the sum of the scores of their new tokens, and `"ends"` `(batch, beam)`, their number of stop
    tokens. The *beams* are the hypotheses that still grow, `num_beams` for each sequence. A missing
    one has a score of minus infinity.

    A sequence waits unchanged at the positions of its prompt and after it is done, so its result
    does not depend on the other sequences of the batch.

    A subclass implements `choose` (which hypotheses to keep), `done` (which sequences are done) and
    `results` (what to return), with a dictionary `finished` as its state.
    """

    def __init__(self, num_beams, min_ends=1, **kwargs):
        super().__init__(**kwargs)
        check_positive_integer("num_beams", num_beams)
        check_positive_integer("min_ends", min_ends)
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

    def build_finished(self, beams):
        """Returns the first `finished`, a dictionary of tensors `(batch, ...)`."""
        raise NotImplementedError

    def choose(self, grown, finished, made):
        """Returns the new beams, chosen from the continuations, and the new `finished`.

        The beams keep their `"parents"`. `made` `(batch, 1)` is the number of new tokens.
        """
        raise NotImplementedError

    def done(self, beams, finished, made, most):
        """Returns bool `(batch,)`: is a sequence done with `made` of `most` new tokens?"""
        raise NotImplementedError

    def results(self, beams, finished, most):
        raise NotImplementedError

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
