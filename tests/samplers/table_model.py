"""A table of all prefixes as a language model, and beam search over it in plain Python.

The new tokens of a sequence are a node of a tree: the root is 0, and the child by a token is
`node * vocabulary + 1 + token`. `tables[row, node]` are the logits of the next token, float32.
"""

import keras
import numpy as np
from keras import ops

from roformer_tf.samplers import with_min_length
from tests.layers.harness import numpy

LENGTHS, LENGTH = (1, 2, 4), 6  # of the prompts, and of the rows


def make_tables(rng, rows, vocabulary, depth, spread=1.5):
    """Returns random logits of all prefixes of fewer than `depth` new tokens, for each sequence."""
    nodes = sum(vocabulary**n for n in range(depth))
    return rng.normal(scale=spread, size=(rows, nodes, vocabulary)).astype("float32")


def make_prompt(lengths, length):
    """Returns prompts of a sequence's number and `length - 1` tokens 0, and their mask."""
    prompt = np.zeros((len(lengths), length), "int32")
    prompt[:, 0] = np.arange(len(lengths))
    return prompt, np.arange(length) < np.array(lengths)[:, None]


def step(tables, mask):
    """Returns `next` without a cache."""

    def next(prompt, cache, index):
        row = prompt[:, 0]
        given = ops.take(ops.convert_to_tensor(mask), row, axis=0)
        node = ops.zeros_like(row)
        for i in range(mask.shape[1]):
            new = ops.logical_and(ops.logical_not(given[:, i]), i < index)
            node = ops.where(new, node * tables.shape[2] + 1 + prompt[:, i], node)
        return logits_of(tables, row, node), None, cache

    return next


def cached_step(tables, mask):
    """Returns `next` that reads the last token and a cache, whose structure holds the node."""

    def next(prompt, cache, index):
        row, last = cache["row"][:, 0], prompt[:, index - 1]
        given = ops.take(ops.convert_to_tensor(mask), row, axis=0)[:, index - 1]
        node = cache["node"]
        node = ops.where(given, node, node * tables.shape[2] + 1 + last)
        return logits_of(tables, row, node), None, {**cache, "node": node}

    return next


def first_cache(rows):
    """Returns the first cache of `cached_step`."""
    return {"row": np.arange(rows, dtype="int32")[:, None], "node": np.zeros(rows, "int32")}


def logits_of(tables, row, node):
    flat = ops.convert_to_tensor(tables.reshape(-1, tables.shape[2]))
    # the node of a full or waiting sequence may lie outside the table
    node = ops.minimum(node, tables.shape[1] - 1)
    return ops.take(flat, row * tables.shape[1] + node, axis=0)


def search(
    sampler, tables, stops, lengths=LENGTHS, length=LENGTH, cached=True, min_length=0, wrap=None
):
    """Returns prompts of these lengths, and the sampler's result as arrays."""
    prompt, mask = make_prompt(lengths, length)
    cache = first_cache(len(lengths)) if cached else None
    next = (cached_step if cached else step)(tables, mask)
    next = with_min_length(next, min_length, stops, mask)

    def run(prompt, cache):
        return sampler(
            next, prompt, cache=cache, index=min(lengths), mask=mask, stop_token_ids=stops
        )

    cache = cache and keras.tree.map_structure(ops.convert_to_tensor, cache)
    found = (wrap(run) if wrap else run)(ops.convert_to_tensor(prompt), cache)
    return prompt, keras.tree.map_structure(numpy, found)


# === The same in plain Python and float64 ===


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


class Row:
    """The table of one sequence, in float64."""

    def __init__(self, table, temperature=1.0, min_length=0, stops=()):
        self.table, self.temperature = table, temperature
        self.min_length, self.stops = min_length, list(stops)

    def next(self, tokens):
        """Returns the log probabilities of the token after `tokens`."""
        node = 0
        for token in tokens:
            node = node * self.table.shape[1] + 1 + token
        logits = self.table[node].astype("float64")
        if len(tokens) < self.min_length:
            logits[self.stops] = -np.inf
        return log_softmax(logits / self.temperature)


def penalty(length, alpha, form):
    return {"fairseq": float(length), "gnmt": (5 + length) / 6}[form] ** alpha


def all_outputs(row, stops, room, min_ends=1, tokens=(), score=0.0):
    """Yields (tokens, log probability) of every text, up to its last stop token or `room`."""
    ended = bool(tokens) and tokens[-1] in stops and sum(t in stops for t in tokens) >= min_ends
    if ended or len(tokens) == room:
        yield tokens, score
        return
    for token, log_prob in enumerate(row.next(tokens)):
        yield from all_outputs(row, stops, room, min_ends, (*tokens, token), score + log_prob)


def exhaustive_search(row, stops, room, alpha, form):
    """Returns [(score, tokens)] of every possible text, best first."""
    found = all_outputs(row, stops, room)
    return sorted(((s / penalty(len(t), alpha, form), t) for t, s in found), reverse=True)


def beam_search(row, stops, room, beams, alpha, form, min_ends=1, early_stopping=False):
    """Returns the best [(score, tokens)] as `BeamSearchSampler`, without its bound."""
    growing, finished = [(0.0, ())], []
    for length in range(1, room + 1):
        candidates = []
        for score, tokens in growing:
            for token, log_prob in enumerate(row.next(tokens)):
                candidates.append((score + log_prob, (*tokens, token)))
        candidates.sort(reverse=True)
        growing = []
        for rank, (score, tokens) in enumerate(candidates):
            if tokens[-1] in stops and sum(t in stops for t in tokens) >= min_ends:
                if rank < beams and np.isfinite(score):
                    finished.append((score / penalty(length, alpha, form), tokens))
            elif len(growing) < beams and np.isfinite(score):
                growing.append((score, tokens))
        if early_stopping and len(finished) >= beams:
            growing = []
            break
    finished += [(score / penalty(room, alpha, form), tokens) for score, tokens in growing]
    return sorted(finished, reverse=True)[:beams]


def filled(prompt_row, prompt_length, tokens):
    """Returns the sequence as a sampler does."""
    row = np.array(prompt_row)
    row[prompt_length : prompt_length + len(tokens)] = tokens
    return row.tolist()
