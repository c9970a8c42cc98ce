"""Chi-square tests of KerasHub's samplers, and how the original's `random_sample` differs.

All seeds are fixed, so a test that passes once always passes.
"""

import keras_hub
import numpy as np
import pytest
from keras import ops
from scipy import stats

from roformer_tf.samplers import valid_token_mask, with_min_length
from tests.layers.harness import numpy
from tests.samplers import table_model

# by descending probability: 5, 0, 3, 6, 1, 2, 4
PROBABILITIES = np.array([0.22, 0.08, 0.06, 0.18, 0.03, 0.33, 0.10])
DRAWS = 20_000
SEED = 8


def draw(sampler, logits, draws=DRAWS):
    """How often each token is drawn at one position."""
    prompt, mask = table_model.make_prompt([1] * draws, 2)

    def next(prompt, cache, index):
        rows = ops.shape(prompt)[0]
        return ops.repeat(ops.convert_to_tensor(logits[None]), rows, axis=0), None, cache

    tokens = numpy(sampler(next, prompt, index=1, mask=mask))[:, 1]
    return np.bincount(tokens, minlength=len(logits))


def assert_drawn_from(counts, probabilities):
    """Chi-square test. Tokens of probability 0 are never drawn."""
    probabilities = np.asarray(probabilities) / np.sum(probabilities)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        expected = probabilities[possible] * counts.sum()
        assert stats.chisquare(counts[possible], expected).pvalue > 1e-3


def only(tokens, probabilities=PROBABILITIES):
    """These tokens' probabilities, 0 elsewhere."""
    return np.where(np.isin(np.arange(len(probabilities)), tokens), probabilities, 0)


SAMPLERS = keras_hub.samplers
CASES = {
    "greedy": (SAMPLERS.GreedySampler(), only([5])),
    "random": (SAMPLERS.RandomSampler(seed=SEED), PROBABILITIES),
    "random_cold": (SAMPLERS.RandomSampler(seed=SEED, temperature=0.5), PROBABILITIES**2),
    "random_hot": (SAMPLERS.RandomSampler(seed=SEED, temperature=2.0), PROBABILITIES**0.5),
    "top_k": (SAMPLERS.TopKSampler(k=3, seed=SEED), only([5, 0, 3])),
    "top_k_cold": (
        SAMPLERS.TopKSampler(k=4, seed=SEED, temperature=0.5),
        only([5, 0, 3, 6], PROBABILITIES**2),
    ),
    # 0.33 + 0.22 is less than 0.6: the third, which crosses it, belongs to the set
    "top_p": (SAMPLERS.TopPSampler(p=0.6, seed=SEED), only([5, 0, 3])),
    "top_p_of_one": (SAMPLERS.TopPSampler(p=0.3, seed=SEED), only([5])),
    "top_p_of_all": (SAMPLERS.TopPSampler(p=1.0, seed=SEED), PROBABILITIES),
    # with the temperature first: 0.33^2, 0.22^2, ... over their sum are 0.50, 0.22, 0.15
    "top_p_cold": (
        SAMPLERS.TopPSampler(p=0.6, seed=SEED, temperature=0.5),
        only([5, 0], PROBABILITIES**2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_token(name):
    sampler, expected = CASES[name]
    assert_drawn_from(draw(sampler, np.log(PROBABILITIES).astype("float32")), expected)


def test_chi_square_sees_a_wrong_temperature():
    """A temperature that is 10 % off would be found."""
    sampler = SAMPLERS.RandomSampler(seed=SEED, temperature=1.1)
    with pytest.raises(AssertionError):
        assert_drawn_from(draw(sampler, np.log(PROBABILITIES).astype("float32")), PROBABILITIES)


def test_seed_repeats_the_draws():
    logits = np.log(PROBABILITIES).astype("float32")
    first, again, other = (
        draw(SAMPLERS.TopPSampler(p=0.9, seed=seed), logits, 50).tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def texts_drawn(rng, stops, min_length, min_ends):
    """Returns counts of the texts of `RandomSampler` over a table, and its `Row`."""
    draws, length, lengths = 6_000, 5, [2] * 6_000
    table = table_model.make_tables(rng, 1, 3, 3, spread=0.7)
    prompt, mask = table_model.make_prompt(lengths, length)
    prompt[:, 0] = 0  # all rows have the same table
    next = table_model.step(table, mask[:1])
    next = with_min_length(next, min_length, stops, mask)
    sampler = SAMPLERS.RandomSampler(seed=SEED)
    # to end at the first stop token is the sampler's own rule, else it fills the row
    stop_token_ids = stops if min_ends == 1 else None
    rows = sampler(next, prompt, index=2, mask=mask, stop_token_ids=stop_token_ids)
    kept = numpy(valid_token_mask(rows, mask, stops, min_ends))
    counts = {}
    for tokens, kept_tokens in zip(numpy(rows)[:, 2:], kept[:, 2:], strict=True):
        text = tuple(tokens[kept_tokens].tolist())
        counts[text] = counts.get(text, 0) + 1
    assert sum(counts.values()) == draws
    return counts, table[0]


def assert_texts_drawn_from(counts, row, stops, min_ends):
    expected = dict(table_model.all_outputs(row, stops, room=3, min_ends=min_ends))
    assert_drawn_from(
        np.array([counts.pop(tokens, 0) for tokens in expected]), np.exp(list(expected.values()))
    )
    assert not counts


@pytest.mark.parametrize("min_length, min_ends", [(0, 1), (2, 1), (0, 2)])
def test_texts(min_length, min_ends):
    """Each text is drawn with its probability. Stop tokens have 0 before the minimum length."""
    stops = [2]
    counts, table = texts_drawn(np.random.default_rng(3), stops, min_length, min_ends)
    row = table_model.Row(table, min_length=min_length, stops=stops)
    assert_texts_drawn_from(counts, row, stops, min_ends)


# === Against the original ===


def original_counts(original, n=4_000, **options):
    """How often the original draws each token at one position."""
    table = np.log(PROBABILITIES)[None].astype("float32")
    texts = original.decode(
        "random_sample", end_id=-1, maxlen=1, table=table, seed=SEED, n=n, **options
    )
    return np.bincount([tokens[0] for tokens in texts], minlength=len(PROBABILITIES))


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name, options",
    [
        ("random", {}),
        ("random_cold", {"temperature": 0.5}),
        ("top_k", {"topk": 3}),
        ("top_p", {"topp": 0.6}),
        ("top_p_of_one", {"topp": 0.3}),
        ("top_p_cold", {"topp": 0.6, "temperature": 0.5}),
    ],
)
def test_original_draws_from_the_same_distribution(original, name, options):
    assert_drawn_from(original_counts(original, **options), CASES[name][1])


@pytest.mark.oracle
def test_original_draws_the_same_texts(original):
    """Texts end with their `min_ends`-th stop token, where KerasHub's texts are truncated."""
    table = table_model.make_tables(np.random.default_rng(3), 1, 3, 3, spread=0.7)[0]
    for min_ends in (1, 2):
        texts = original.decode(
            "random_sample",
            end_id=2,
            maxlen=3,
            table=table,
            seed=SEED,
            n=4_000,
            min_ends=min_ends,
        )
        counts = {}
        for tokens in texts:
            counts[tuple(tokens.tolist())] = counts.get(tuple(tokens.tolist()), 0) + 1
        assert_texts_drawn_from(counts, table_model.Row(table), [2], min_ends)


@pytest.mark.oracle
def test_the_two_differences_from_the_original(original):
    """With top k, the original's p is a share of these k, KerasHub's of all tokens."""
    logits = np.log(PROBABILITIES).astype("float32")
    # 0.33 / (0.33 + 0.22 + 0.18) is 0.45, so one more crosses 0.5 there; of all, 0.33 + 0.22
    # crosses 0.5 as well, but at p = 0.7 the original stops after 0 (0.75 of the three), and
    # KerasHub continues with 3 (0.55 of all)
    counts = original_counts(original, topk=3, topp=0.7)
    assert_drawn_from(counts, only([5, 0]))
    assert_drawn_from(draw(SAMPLERS.TopPSampler(p=0.7, k=3, seed=SEED), logits), only([5, 0, 3]))

    # 0.5 + 0.25 is p exactly: the original's set is complete, KerasHub takes one more
    exact = np.array([[0.5, 0.25, 0.125, 0.125]], "float32")
    rows = ops.convert_to_tensor(exact.repeat(400, axis=0))
    theirs = numpy(SAMPLERS.TopPSampler(p=0.75, seed=SEED).get_next_token(rows))
    assert sorted(set(theirs.tolist())) == [0, 1, 2]
    texts = original.decode(
        "random_sample", end_id=-1, maxlen=1, table=np.log(exact), seed=SEED, n=400, topp=0.75
    )
    assert sorted({int(tokens[0]) for tokens in texts}) == [0, 1]
