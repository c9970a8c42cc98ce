"""Sequences of chunks: nothing is lost, nothing overflows, little is padding."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.pretraining.packing import (
    form_sequences,
    pack_chunks,
    split_long_chunks,
    take_sequences,
)
from roformer_tf.text.ragged_ops import repeat_indices

CLS, SEP = 2, 3


def best_fit_decreasing(lengths, capacity):
    """The fill of each sequence, with one chunk after the other."""
    sequences = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, free in enumerate(sequences) if free >= length]
        if fits:
            sequences[min(fits, key=lambda i: (sequences[i], i))] -= length
        else:
            sequences.append(capacity - length)
    return sorted(capacity - free for free in sequences)


def real_mix(rng, count, capacity):
    """Lengths like those of posts, articles and laws: many short, some medium, some full."""
    short = rng.lognormal(np.log(24), 0.8, size=count)
    middle = rng.uniform(0.3, 1.0, size=count // 4) * capacity
    full = np.full(count // 10, capacity)
    lengths = np.concatenate([short, middle, full]).astype("int32")
    return rng.permutation(np.clip(lengths, 3, capacity))


def test_owners_and_cuts(rng):
    lengths = rng.integers(0, 9, size=50).astype("int32")
    np.testing.assert_array_equal(repeat_indices(lengths), np.repeat(np.arange(50), lengths))
    assert repeat_indices(np.zeros(0, "int32")).shape == (0,)
    lengths = rng.integers(0, 30, size=50)
    expected = [min(7, n - start) for n in lengths for start in range(0, n, 7)]
    assert split_long_chunks(tf.constant(lengths, tf.int32), 7).numpy().tolist() == expected


@pytest.mark.parametrize("capacity", [16, 128, 512])
def test_is_best_fit_decreasing(capacity, rng):
    lengths = real_mix(rng, 300, capacity)
    sequences = tf.function(pack_chunks)(lengths, capacity).numpy()
    fill = np.bincount(sequences, weights=lengths)
    assert fill.min() > 0 and fill.max() <= capacity
    assert sorted(fill) == best_fit_decreasing(lengths.tolist(), capacity)


@pytest.mark.parametrize("capacity", [128, 512, 1536])
def test_padding_of_packed_sequences(capacity, rng):
    lengths = real_mix(rng, 5000, capacity)
    sequences = tf.function(pack_chunks)(lengths, capacity).numpy()
    assert lengths.sum() / ((sequences.max() + 1) * capacity) > 0.99


@pytest.mark.parametrize("lengths", [[], [1], [8], [8, 8], [1] * 20])
def test_few_chunks(lengths):
    sequences = pack_chunks(tf.constant(lengths, tf.int32), 8).numpy()
    assert len(sequences) == len(lengths)
    assert len(set(sequences)) == -(-sum(lengths) // 8)


@pytest.mark.parametrize("ends", [1, 2])
@pytest.mark.parametrize("packing", ["none", "full"])
def test_sequences_hold_every_token_once(packing, ends, rng):
    capacity = 24
    room = capacity - 1 - ends
    texts = [rng.integers(5, 900, size=n).tolist() for n in rng.integers(0, 60, size=80)]
    flat = np.array(sum(texts, []), "int32")
    words = rng.random(len(flat)) < 0.6
    chunks = {
        "token_ids": tf.constant(flat),
        "lengths": tf.constant([len(t) for t in texts]),
        "word_starts": tf.constant(words),
    }
    make = tf.function(
        lambda chunks, seed: form_sequences(chunks, seed, capacity, packing, CLS, SEP, ends)
    )
    sequences = make(chunks, tf.constant([1, 2], tf.int64))
    count = len(sequences["lengths"])
    taken = take_sequences(sequences, tf.range(count + 1), int(max(sequences["lengths"])))
    taken = {name: value.numpy() for name, value in taken.items()}
    assert taken["lengths"][-1] == 0 and not taken["document_ids"][-1].any()

    expected = collections.Counter()
    start = 0
    for text in texts:
        for part in range(0, len(text), room):
            chunk = text[part : part + room]
            own = words[start + part : start + part + len(chunk)].tolist()
            expected[tuple(chunk), (True, *own[1:])] += 1
        start += len(text)
    found = collections.Counter()
    for ids, numbers, starts, length in zip(
        *(taken[k] for k in ("token_ids", "document_ids", "word_starts", "lengths")), strict=True
    ):
        assert length <= capacity and not ids[length:].any() and not numbers[length:].any()
        assert numbers[:length].tolist() == sorted(numbers[:length])
        assert set(numbers[:length]) == set(range(1, numbers.max() + 1))
        for number in range(1, numbers.max() + 1):
            document = ids[numbers == number].tolist()
            own = starts[numbers == number]
            assert document[0] == CLS and document[-ends:] == [SEP] * ends
            assert own[0] and own[-ends:].all()
            found[tuple(document[1:-ends]), tuple(own[1:-ends].tolist())] += 1
        if packing == "none" and length:
            assert numbers.max() == 1
    assert found == expected

    again, other = make(chunks, [1, 2]), make(chunks, [1, 3])
    np.testing.assert_array_equal(again["token_ids"], sequences["token_ids"])
    assert other["token_ids"].numpy().tolist() != sequences["token_ids"].numpy().tolist()


def test_no_chunks():
    chunks = {"token_ids": tf.zeros([0], tf.int32), "lengths": tf.zeros([2], tf.int32)}
    for packing in ("none", "full"):
        sequences = form_sequences(chunks, [1, 2], 8, packing, CLS, SEP)
        assert len(sequences["lengths"]) == len(sequences["starts"]) == 0
