"""Batches by number of tokens: the budget, no lost or doubled pair, and the order."""

import itertools

import numpy as np
import pytest

from roformer_tf.text import RoFormerSentencePieceTokenizer, token_batches, train_sentencepiece

MAX_TOKENS, MAX_LENGTH = 60, 20


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["a b c d e f g h", "i j k l m n o p"]
    return RoFormerSentencePieceTokenizer(train_sentencepiece(texts, 22))


@pytest.fixture
def pairs(rng):
    """200 distinct pairs of texts of 1 to 12 words, each one or two tokens."""

    def text(number, length):
        return " ".join([f"{number:03d}", *rng.choice(list("abcdefgh"), length - 1)])

    return tuple([text(i, rng.integers(1, 13)) for i in range(200)] for _ in range(2))


def rows_of(batch):
    return list(zip(*(batch[f"{side}_text"].numpy() for side in ("encoder", "decoder"))))


def lengths(tokenizer, rows):
    return [max(len(tokenizer([text])[0]) + 2 for text in row) for row in rows]


def test_one_pass_has_every_pair_that_is_short_enough(pairs, tokenizer):
    data = token_batches(pairs, tokenizer, MAX_TOKENS, MAX_LENGTH)
    batches = [rows_of(b) for b in data]
    assert int(data.cardinality()) == len(batches)
    for rows in batches:
        assert max(lengths(tokenizer, rows)) * len(rows) <= MAX_TOKENS
    found = [row for rows in batches for row in rows]
    everything = [tuple(text.encode() for text in pair) for pair in zip(*pairs)]
    expected = [p for p, n in zip(everything, lengths(tokenizer, everything)) if n <= MAX_LENGTH]
    assert sorted(found) == sorted(expected) and 0 < len(expected) < len(everything)
    assert np.mean([len(rows) for rows in batches]) > 2  # short ones fill their batches


def test_order_depends_on_the_seed_alone(pairs, tokenizer):
    def first(seed, count=150):
        batches = token_batches(pairs, tokenizer, MAX_TOKENS, MAX_LENGTH, seed, multiple_of=2)
        return [rows_of(b) for b in itertools.islice(batches, count)]

    one = first(1)
    assert one == first(1) != first(2)
    assert all(len(rows) % 2 == 0 for rows in one)
    seen = [row for rows in one for row in rows]
    assert len(seen) > 2 * len(set(seen))  # endless
    passes = [seen[i : i + 100] for i in (0, 200)]
    assert passes[0] != passes[1]  # shuffled differently


def test_errors(pairs, tokenizer):
    with pytest.raises(ValueError, match="200 sources, 199 targets"):
        token_batches((pairs[0], pairs[1][:-1]), tokenizer, MAX_TOKENS, MAX_LENGTH)
    for seed in (None, 0):  # with a seed the search for a pair would never end
        with pytest.raises(
            ValueError, match="No pair has at most `max_length` tokens.*max_length=2"
        ):
            token_batches(pairs, tokenizer, MAX_TOKENS, 2, seed=seed)
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        token_batches(pairs, tokenizer, MAX_TOKENS, 0)
    with pytest.raises(ValueError, match="must be at least `multiple_of` times"):
        token_batches(pairs, tokenizer, max_tokens=10, max_length=20)
