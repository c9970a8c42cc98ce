"""Decoders around a Python function: text from left to right, and the best path of tags."""

import numpy as np

from roformer_tf.compat.keras import layers, models

_RTYPES = ("probas", "logits")


def softmax(x, axis=-1):
    """Returns the softmax of an array.

    >>> softmax(np.zeros(2)).tolist()
    [0.5, 0.5]
    """
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


class ViterbiDecoder:
    """Finds the tags with the highest sum of scores.

    Args:
        trans: Array `(tags, tags)`, scores of a tag after another one.
        starts, ends: lists of the tags that a sequence may start and end with; all by default.

    >>> decoder = ViterbiDecoder(np.array([[0.0, 2.0], [0.0, 0.0]]))
    >>> decoder.decode(np.array([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [0, 1]
    """

    def __init__(self, trans, starts=None, ends=None):
        self.trans = trans
        self.num_labels = len(trans)
        tags = range(self.num_labels)
        self.non_starts = [] if starts is None else [i for i in tags if i not in starts]
        self.non_ends = [] if ends is None else [i for i in tags if i not in ends]

    def decode(self, nodes):
        """Returns the tags `(length,)` for scores `(length, tags)`, which it may change."""
        nodes[0, self.non_starts] -= np.inf
        nodes[-1, self.non_ends] -= np.inf
        scores, before = nodes[0], []
        for node in nodes[1:]:
            candidates = scores[:, None] + self.trans + node
            before.append(candidates.argmax(axis=0))
            scores = candidates.max(axis=0)
        path = [scores.argmax()]
        for best in reversed(before):
            path.append(best[path[-1]])
        return np.array(path[::-1])


class AutoRegressiveDecoder:
    """Generates sequences token by token.

    Subclasses implement `predict(inputs, output_ids, states)`, decorated with `wraps`. It returns
    probabilities or logits of the next token, `(rows, vocabulary)`.

    `RoFormerCausalLM.generate` does the same in a graph, with a cache.

    Args:
        start_id, end_id: ints. The first token, or `None` for none, and the last one.
        maxlen, minlen: ints. Most and fewest new tokens.

    Example: always writes 1, 1, 2.

    >>> class Decoder(AutoRegressiveDecoder):
    ...     @AutoRegressiveDecoder.wraps(default_rtype="probas")
    ...     def predict(self, inputs, output_ids, states):
    ...         last = output_ids.shape[1] == 2
    ...         return np.tile([[0.0, 1.0 - last, last]], (len(output_ids), 1))
    >>> Decoder(start_id=None, end_id=2, maxlen=9).beam_search([], topk=1).tolist()
    [1, 1, 2]
    """

    def __init__(self, start_id, end_id, maxlen, minlen=1):
        self.start_id, self.end_id = start_id, end_id
        self.maxlen, self.minlen = maxlen, minlen
        self.models = {}
        self.first_output_ids = np.array([[] if start_id is None else [start_id]], dtype=int)

    @staticmethod
    def wraps(default_rtype="probas", use_states=False):
        """Returns a decorator of `predict`, which then takes `temperature` and `rtype`.

        Args:
            default_rtype: `"probas"` or `"logits"`: what `predict` returns for the next token.
            use_states: bool. Whether it returns a pair with its states.
        """

        def decorate(predict):
            def decorated(self, inputs, output_ids, states, temperature=1, rtype=default_rtype):
                if rtype not in _RTYPES:
                    raise ValueError(f"`rtype` must be one of {_RTYPES}. Received: rtype={rtype!r}")
                numbers = predict(self, inputs, output_ids, states)
                numbers, states = numbers if use_states else (numbers, None)
                if default_rtype == "logits":
                    numbers = softmax(numbers / temperature)
                elif temperature != 1:
                    numbers = np.power(numbers, 1.0 / temperature)
                    numbers = numbers / numbers.sum(axis=-1, keepdims=True)
                return (numbers if rtype == "probas" else np.log(numbers + 1e-12)), states

            return decorated

        return decorate

    def last_token(self, model):
        """Returns a model of another model's outputs at the last token."""
        if model not in self.models:
            outputs = [layers.Lambda(lambda x: x[:, -1])(output) for output in model.outputs]
            self.models[model] = models.Model(model.inputs, outputs)
        return self.models[model]

    def beam_search(self, inputs, topk, states=None, temperature=1, min_ends=1):
        """Returns the best sequence that a beam search finds.

        Args:
            inputs: list of sequences. The inputs of one example.
            topk: int. Number of sequences to keep.
            states: States for the first call of `predict`.
            min_ends: int. How many end tokens end a sequence.
        """
        inputs = [np.array([x]) for x in inputs]
        ids, totals = self.first_output_ids, np.zeros(1)
        for step in range(self.maxlen):
            scores, states = self.predict(inputs, ids, states, temperature, "logits")
            if step == 0:
                inputs = [np.repeat(x, topk, axis=0) for x in inputs]
            scores = totals[:, None] + scores
            best = scores.argpartition(-topk, axis=None)[-topk:]
            rows, tokens = np.divmod(best, scores.shape[1])
            ids = np.concatenate([ids[rows], tokens[:, None]], axis=1)
            totals = scores.reshape(-1)[best]
            if ids.shape[1] < self.minlen:
                continue
            ended = self._ended(ids, min_ends)
            if ended[totals.argmax()]:
                break
            if ended.any():
                ids, totals = ids[~ended], totals[~ended]
                inputs = [x[~ended] for x in inputs]
                topk = len(ids)
        return ids[totals.argmax()]

    def random_sample(
        self, inputs, n, topk=None, topp=None, states=None, temperature=1, min_ends=1
    ):
        """Returns a list of `n` sequences, drawn with NumPy's global generator.

        Args:
            inputs, states, temperature, min_ends: See `beam_search`.
            topk: int. Draws among so many of the most probable tokens.
            topp: float. Draws among the most probable tokens that together reach it.
        """
        inputs, ids, results = [np.array([x]) for x in inputs], self.first_output_ids, []
        for step in range(self.maxlen):
            p, states = self.predict(inputs, ids, states, temperature, "probas")
            p = p / p.sum(axis=1, keepdims=True)
            if step == 0:
                p, ids = np.repeat(p, n, axis=0), np.repeat(ids, n, axis=0)
                inputs = [np.repeat(x, n, axis=0) for x in inputs]
            tokens = None
            if topk is not None:
                tokens = p.argpartition(-topk, axis=1)[:, -topk:]
                p = np.take_along_axis(p, tokens, axis=1)
                p = p / p.sum(axis=1, keepdims=True)
            if topp is not None:
                order = p.argsort(axis=1)[:, ::-1]
                tokens = order if tokens is None else np.take_along_axis(tokens, order, axis=1)
                p = np.take_along_axis(p, order, axis=1)
                reached = np.cumsum(p, axis=1)[:, :-1] >= topp  # the tokens before reach it already
                p[:, 1:][reached] = 0
                p = p / p.sum(axis=1, keepdims=True)
            drawn = np.array([[np.random.choice(len(row), p=row)] for row in p])  # noqa: NPY002
            if tokens is not None:
                drawn = np.take_along_axis(tokens, drawn, axis=1)
            ids = np.concatenate([ids, drawn], axis=1)
            if ids.shape[1] < self.minlen:
                continue
            ended = self._ended(ids, min_ends)
            if ended.any():
                results += list(ids[ended])
                ids, inputs = ids[~ended], [x[~ended] for x in inputs]
                if not len(ids):
                    break
        return results + list(ids)

    def _ended(self, ids, min_ends):
        """Whether each sequence ends with the end token and has enough of them."""
        return (ids[:, -1] == self.end_id) & ((ids == self.end_id).sum(axis=1) >= min_ends)
