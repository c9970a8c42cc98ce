"""Targets of the three objectives: what holds for each token, and the rates of masking."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.pretraining.objective import PretrainingObjective

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = [PAD, UNK, CLS, SEP, MASK]
V = 97


@functools.cache
def tokenizer(size=V):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return roformer_tf.RoFormerTokenizer(
        special + [chr(0x4E00 + i) for i in range(size - 5)], word_level=False
    )


def packed(documents, ends=1, width=None):
    """Lays out sequences of documents (lists of ids) as the objective takes them."""
    laid = [[[CLS, *d] + [SEP] * ends for d in row] for row in documents]
    width = width or max(sum(map(len, row)) for row in laid)
    ids = np.zeros((len(laid), width), "int32")
    numbers = np.zeros_like(ids)
    for row, parts in enumerate(laid):
        flat = sum(parts, [])
        ids[row, : len(flat)] = flat
        numbers[row, : len(flat)] = np.repeat(np.arange(len(parts)) + 1, [len(p) for p in parts])
    return ids, (numbers > 0).sum(1).astype("int32"), numbers


def random_documents(rng, count=40):
    return [
        [rng.integers(5, V, size=rng.integers(1, 13)).tolist() for _ in range(rng.integers(1, 5))]
        for _ in range(count)
    ]


def numpy(batch):
    return SimpleNamespace(**{k: v.numpy() for k, v in batch.items()})


def labels_by_position(batch):
    """(batch, sequence_length), -1 where nothing is predicted; checks the slots on the way."""
    labels = np.full(batch.token_ids.shape, -1)
    assert batch.mask_positions.shape == batch.labels.shape == batch.label_weights.shape
    assert batch.labels.shape[1] % 8 == 0
    assert set(np.unique(batch.label_weights)) <= {0.0, 1.0}
    for row, (positions, own, weights) in enumerate(
        zip(batch.mask_positions, batch.labels, batch.label_weights, strict=True)
    ):
        count = int(weights.sum())
        assert (weights[:count] == 1).all()
        assert (np.diff(positions[:count]) > 0).all()
        assert not positions[count:].any() and not own[count:].any()
        labels[row, positions[:count]] = own[:count]
    used = batch.label_weights.sum(1).max()
    assert batch.labels.shape[1] == max(8, math.ceil(used / 8) * 8)
    return labels


def binomial_bounds(n, p):
    """The smallest interval around the mean with at most 1e-6 beyond each end, exactly."""
    k = np.arange(n + 1)
    log = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    below = np.cumsum(np.exp(log + k * math.log(p) + (n - k) * math.log1p(-p)))
    return np.searchsorted(below, 1e-6), np.searchsorted(below, 1 - 1e-6)


def long_sequences(rng):
    return packed([[rng.integers(5, V, size=100).tolist()] for _ in range(200)])


@pytest.mark.parametrize("special", [False, True])
def test_masking_statistics(rng, seed, special):
    ids, lengths, _ = long_sequences(rng)
    ids[:, 3] = UNK
    objective = PretrainingObjective(tokenizer(), mask_special_tokens=special)
    batch = numpy(objective(ids, lengths, [seed, 1]))
    labels = labels_by_position(batch)
    chosen = labels >= 0
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(batch.token_ids[~chosen], ids[~chosen])
    is_special = np.isin(ids, SPECIAL)
    if not special:
        assert not (chosen & is_special).any()
    else:
        assert (chosen & (ids == CLS)).any() and (chosen & (ids == SEP)).any()
        assert (chosen & (ids == UNK)).any()
    selectable = ids.size if special else (~is_special).sum()

    masked = (batch.token_ids == MASK) & chosen
    kept = (batch.token_ids == ids) & chosen
    random = chosen & ~masked & ~kept
    other = (V - 3) / (V - 1)  # a random token that is neither the mask token nor the old one
    n = chosen.sum()
    for count, of, share in (
        (n, selectable, 0.15),
        (masked.sum(), n, 0.8 + 0.1 / (V - 1)),
        (kept.sum(), n, 0.1 + 0.1 / (V - 1)),
        (random.sum(), n, 0.1 * other),
    ):
        low, high = binomial_bounds(of, share)
        assert low <= count <= high, (count, of, share)


def test_random_tokens_are_uniform_without_padding(rng, seed):
    ids, lengths, _ = long_sequences(rng)
    objective = PretrainingObjective(
        tokenizer(), mask_rate=1.0, mask_token_rate=0.0, random_token_rate=1.0
    )
    batch = numpy(objective(ids, lengths, [seed, 2]))
    counts = np.bincount(batch.token_ids[~np.isin(ids, SPECIAL)], minlength=V)
    assert counts[0] == 0 and len(counts) == V
    expected = counts.sum() / (V - 1)
    chi = ((counts[1:] - expected) ** 2 / expected).sum()
    # of V - 2 degrees of freedom; six standard deviations, about one run in a million
    assert chi < (V - 2) + 6 * math.sqrt(2 * (V - 2))


def test_rates_of_one_and_none(rng):
    ids, lengths, numbers = packed(random_documents(rng))
    none = numpy(PretrainingObjective(tokenizer(), mask_rate=0.0)(ids, lengths, [1, 1], numbers))
    assert not none.label_weights.any() and none.labels.shape[1] == 8
    np.testing.assert_array_equal(none.token_ids, ids)
    every = PretrainingObjective(tokenizer(), mask_rate=1.0, mask_token_rate=1.0)
    every = numpy(every(ids, lengths, [1, 1], numbers))
    np.testing.assert_array_equal(every.token_ids, np.where(ids > MASK, MASK, ids))


def test_whole_words(rng, seed):
    ids, lengths, _ = long_sequences(rng)
    starts = rng.random(ids.shape) < 0.5
    starts[:, :2] = True  # [CLS], and the first token of the text
    starts |= ids == SEP
    objective = PretrainingObjective(tokenizer(), whole_word=True)
    batch = numpy(objective(ids, lengths, [seed, 3], word_starts=tf.constant(starts)))
    chosen = labels_by_position(batch) >= 0
    word = np.cumsum(starts, axis=1)
    chosen_words, words = 0, 0
    for row in range(len(ids)):
        for number in range(2, word[row, -1]):  # without [CLS] and [SEP]
            own = chosen[row, word[row] == number]
            assert own.all() or not own.any()
            chosen_words += own.all()
            words += 1
    low, high = binomial_bounds(words, 0.15)
    assert low <= chosen_words <= high
    # what becomes of a token is its own matter: the mask token and others stand in one word
    masked = (batch.token_ids == MASK) & chosen
    low, high = binomial_bounds(chosen.sum(), 0.8 + 0.1 / (V - 1))
    assert low <= masked.sum() <= high
    two = starts[:, :-2] & ~starts[:, 1:-1] & starts[:, 2:] & chosen[:, :-2]
    assert (masked[:, :-2] != masked[:, 1:-1])[two].any()
    with pytest.raises(ValueError, match="`whole_word=True` needs `word_starts`"):
        objective(ids, lengths, [1, 1])


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm", "unilm"])
def test_a_seed_is_a_batch(name, rng):
    """The same in eager and graph execution; another seed, another batch, where there is chance."""
    objective = PretrainingObjective(tokenizer(), name)
    packed_ones = packed(random_documents(rng), ends=objective.num_end_tokens)
    one, two, other = (
        numpy(call(packed_ones[0], packed_ones[1], tf.constant(s, tf.int64), packed_ones[2]))
        for call, s in ((objective, [7, 8]), (tf.function(objective), [7, 8]), (objective, [7, 9]))
    )
    for key in vars(one):
        np.testing.assert_array_equal(getattr(one, key), getattr(two, key), key)
    same = one.token_ids.tolist() == other.token_ids.tolist()
    assert same == (name == "causal_lm")


def test_causal_targets(rng):
    documents = random_documents(rng)
    ids, lengths, numbers = packed(documents)
    batch = numpy(PretrainingObjective(tokenizer(), "causal_lm")(ids, lengths, [1, 2], numbers))
    np.testing.assert_array_equal(batch.token_ids, ids)
    assert not batch.segment_ids.any()
    np.testing.assert_array_equal(batch.padding_mask, numbers > 0)
    expected = np.full(ids.shape, -1)
    for row, parts in enumerate(documents):
        start = 0
        for part in parts:
            expected[row, start : start + len(part) + 1] = [*part, SEP]
            start += len(part) + 2
    np.testing.assert_array_equal(labels_by_position(batch), expected)


def test_unilm_targets(rng):
    # enough documents of three tokens that each position to split them occurs, whatever the seed
    documents = random_documents(rng, count=60) + [[[5, 6, 7]] * 4] * 20
    ids, lengths, numbers = packed(documents, ends=2)
    batch = numpy(PretrainingObjective(tokenizer(), "unilm")(ids, lengths, [1, 2], numbers))
    labels = labels_by_position(batch)
    sources = []
    for row, parts in enumerate(documents):
        start = 0
        for part in parts:
            place = slice(start, start + len(part) + 3)
            found, segments = batch.token_ids[row, place], batch.segment_ids[row, place]
            n = int((segments == 0).sum()) - 2  # tokens of a
            sources.append((n, len(part)))
            assert found.tolist() == [CLS, *part[:n], SEP, *part[n:], SEP]
            assert segments.tolist() == [0] * (n + 2) + [1] * (len(part) - n + 1)
            assert len(part) - n >= 1 and (n >= 1 or len(part) == 1)
            assert labels[row, place].tolist() == [-1] * (n + 1) + [*part[n:], SEP] + [-1]
            start += len(part) + 3
        assert (labels[row, start:] == -1).all()
    assert {n for n, size in sources if size == 3} == {1, 2}
    np.testing.assert_array_equal(batch.padding_mask, numbers > 0)


def test_empty_sequences_count_for_nothing():
    ids, lengths, numbers = packed([[[5, 6]], []], ends=2, width=9)
    for name in ("masked_lm", "causal_lm", "unilm"):
        batch = numpy(PretrainingObjective(tokenizer(), name)(ids, lengths, [1, 2], numbers))
        assert not batch.label_weights[1].any() and not batch.padding_mask[1].any()


def test_unknown_objective():
    with pytest.raises(ValueError, match="`objective` must be one of .*Received: objective='mlm'"):
        PretrainingObjective(tokenizer(), "mlm")
