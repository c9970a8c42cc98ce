import keras
import keras_hub
from keras import ops

from roformer_tf.samplers.min_length import is_any_of

NO_SCORE = float("-inf")  # of a hypothesis that is not there


class BeamLoop(keras_hub.samplers.Sampler):
    """What the beam searches share: the loop over the places, and the hypotheses of each row.

    Hypotheses are a dictionary: `"tokens"` (row, hypothesis, place), `"scores"` (row, hypothesis), the sum of the
    scores of their new tokens, and `"ends"`, how many stop tokens they made. Those that still grow are the *beams*,
    `num_beams` in each row, with a score of minus infinity where there are fewer.

    A row waits, and nothing in it changes, while the place is one of its prompt and after it is done: so what comes out
    of a row does not depend on the other rows.

    A subclass says by `choose` which hypotheses go on, by `done` which rows are done and by `results` what comes out;
    what it needs to remember for that is its `memory`.
    """

    def __init__(self, num_beams, min_ends=1, **kwargs):
        super().__init__(**kwargs)
        for name, value in (("num_beams", num_beams), ("min_ends", min_ends)):
            if value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}")
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
        # (row, place + 1): how many new tokens stand before a place
        made = ops.cumsum(ops.cast(ops.logical_not(mask), "int32"), axis=1)
        made = ops.pad(made, ((0, 0), (1, 0)))
        index = ops.cast(index, "int32")
        cache = () if cache is None else cache  # the variables of a loop cannot be None

        def first_beams(x):
            return ops.repeat(x, self.num_beams, axis=0)

        beam = ops.zeros((batch_size, 1), "int32") + ops.arange(self.num_beams, dtype="int32")
        beams = {
            "tokens": ops.reshape(first_beams(prompt), (-1, self.num_beams, length)),
            "scores": ops.where(beam == 0, 0.0, NO_SCORE),  # they are all alike, so one counts
            "ends": ops.zeros_like(beam),
        }

        def done(index, beams, memory):
            return self.done(beams, memory, made[:, index][:, None], made[:, -1:])

        def cond(index, cache, beams, memory):
            return ops.logical_not(ops.all(done(index, beams, memory)))

        def body(index, cache, beams, memory):
            waits = ops.logical_or(mask[:, index], done(index, beams, memory))
            logits, _, cache = next(ops.reshape(beams["tokens"], (-1, length)), cache, index)
            grown = self.grow(beams, logits, index, stop_token_ids)
            chosen, new_memory = self.choose(grown, memory, made[:, index + 1][:, None])
            parents = ops.where(waits[:, None], beam, chosen.pop("parents"))

            def take_cache(x):
                x = ops.reshape(x, (-1, self.num_beams, *ops.shape(x)[1:]))
                x = take(x, parents)
                return ops.reshape(x, (-1, *ops.shape(x)[2:]))

            cache = keras.tree.map_structure(take_cache, cache)
            beams = where_rows(waits, beams, chosen)
            memory = where_rows(waits, memory, new_memory)
            return index + 1, cache, beams, memory

        _, _, beams, memory = self.run_loop(
            cond,
            body,
            loop_vars=(
                index,
                keras.tree.map_structure(first_beams, cache),
                beams,
                self.first_memory(beams),
            ),
            maximum_iterations=length - index,
            model=model,
        )
        return self.results(beams, memory, made[:, -1:])

    def token_scores(self, logits):
        """Scores of the next token, float32: the natural logarithms of the probabilities."""
        return keras.activations.log_softmax(ops.cast(logits, "float32") / self.temperature)

    def grow(self, beams, logits, index, stop_token_ids):
        """The best continuations of the beams by one token, best first.

        There are so many that `num_beams` of them do not end, whatever ends. `"stops"` is whether the last token is a
        stop token, `"parents"` which beam was continued.
        """
        vocabulary_size = ops.shape(logits)[-1]
        scores = ops.reshape(self.token_scores(logits), (-1, self.num_beams, vocabulary_size))
        scores = ops.reshape(
            beams["scores"][..., None] + scores, (-1, self.num_beams * vocabulary_size)
        )
        width = self.num_beams * min(1 + len(stop_token_ids or ()), vocabulary_size)
        scores, places = ops.top_k(scores, width)
        places = ops.cast(places, "int32")
        parents, last = places // vocabulary_size, places % vocabulary_size
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

    def first_memory(self, beams):
        """What `choose`, `done` and `results` get at first: tensors with a row for each of the batch."""
        raise NotImplementedError

    def choose(self, grown, memory, made):
        """From the continuations the new beams (with their `"parents"`), and the new memory.

        `made` (row, 1) is the number of new tokens that the continuations have.
        """
        raise NotImplementedError

    def done(self, beams, memory, made, most):
        """Which rows are done, when they have `made` new tokens of `most` that there is room for: bool (row,)."""
        raise NotImplementedError

    def results(self, beams, memory, most):
        """What the sampler returns."""
        raise NotImplementedError

    def get_config(self):
        return {**super().get_config(), "num_beams": self.num_beams, "min_ends": self.min_ends}


def take(x, chosen):
    """Of each row of `x` (row, hypothesis, ...) those whose numbers are in `chosen` (row, number)."""
    rows, hypotheses = ops.shape(x)[:2]
    places = ops.arange(rows, dtype="int32")[:, None] * hypotheses + ops.cast(chosen, "int32")
    return ops.take(ops.reshape(x, (-1, *ops.shape(x)[2:])), places, axis=0)


def take_all(hypotheses, chosen):
    """`take` for each tensor of a dictionary."""
    return {name: take(x, chosen) for name, x in hypotheses.items()}


def where_rows(condition, this, other):
    """`this` in the rows where the condition (row,) holds, else `other`: dictionaries of tensors (row, ...)."""
    return {
        name: ops.where(ops.reshape(condition, (-1,) + (1,) * (len(x.shape) - 1)), x, other[name])
        for name, x in this.items()
    }
