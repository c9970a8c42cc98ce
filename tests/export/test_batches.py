"""A request of many texts: the batches in which a SavedModel runs them."""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.export.served_models import in_batches
from roformer_tf.models.length_batches import COST_OF_GENERATION

WIDTH = 300


def rows_of(lengths):
    mask = np.int32(np.arange(WIDTH) < np.array(lengths, "int32")[:, None])
    numbers = np.int32(np.arange(len(lengths))[:, None])
    rows = {"token_ids": mask * (numbers + 1), "padding_mask": mask, "mask_positions": numbers}
    return {name: tf.constant(x) for name, x in rows.items()}


def describe(inputs):
    """Returns what a model sees: for each row its number of tokens, number, batch and width."""
    rows, width = tf.unstack(tf.shape(inputs["token_ids"]))
    return {
        "tokens": tf.reduce_sum(inputs["token_ids"], axis=1),
        "number": inputs["mask_positions"],
        "batch": tf.fill([rows], rows),
        "width": tf.fill([rows], width),
    }


def expected_batches(lengths):
    """Returns the rows and the width of each text's batch, by a loop over the longest first."""
    order, found = np.argsort(-lengths, kind="stable"), np.zeros((len(lengths), 2), int)
    while len(order):
        widest = lengths[order[0]]
        padding, count = 0, 0
        while count < min(32, len(order)) and padding + widest - lengths[order[count]] <= 128:
            padding += widest - lengths[order[count]]
            count += 1
        found[order[:count]] = count, widest
        order = order[count:]
    return found.T.tolist()


@pytest.mark.parametrize("kind", ["mixed", "one length", "one long", "single"])
def test_rows_of_similar_length(rng, kind):
    lengths = {
        "mixed": rng.integers(1, WIDTH, 150),
        "one length": np.full(70, 12),
        "one long": np.array([5] * 40 + [WIDTH] + [6] * 20),
        "single": np.array([7]),
    }[kind]
    found = tf.function(in_batches)(describe, rows_of(lengths))
    assert found["tokens"].numpy().tolist() == (lengths * (1 + np.arange(len(lengths)))).tolist()
    assert found["number"].numpy()[:, 0].tolist() == list(range(len(lengths)))
    assert [found["batch"].numpy().tolist(), found["width"].numpy().tolist()] == expected_batches(
        lengths
    )


def test_rows_of_one_width(rng):
    lengths = rng.integers(1, WIDTH, 70)
    found = in_batches(describe, rows_of(lengths), by_length=False)
    assert found["tokens"].numpy().tolist() == (lengths * (1 + np.arange(70))).tolist()
    assert sorted(found["batch"].numpy().tolist()) == [6] * 6 + [32] * 64
    assert set(found["width"].numpy().tolist()) == {WIDTH}


@pytest.mark.parametrize("longest", [9, 6])
def test_the_longest_choice_counts(longest):
    def width_of(inputs):
        return tf.fill(tf.shape(inputs["token_ids"])[:1], tf.shape(inputs["token_ids"])[2])

    lengths = np.array([[longest, 6], [4, 6], [3, 3]])
    mask = tf.constant(np.int32(np.arange(9) < lengths[..., None]))
    widths = in_batches(width_of, {"token_ids": mask, "padding_mask": mask})
    assert widths.numpy().tolist() == [longest] * 3


@pytest.mark.parametrize("by_length", [False, True])
def test_no_rows(by_length):
    found = in_batches(describe, rows_of([]), by_length)
    assert found["tokens"].shape == (0,) and found["number"].shape == (0, 1)


def test_generation_takes_full_batches_of_its_width(rng):
    lengths = rng.permutation(70) + 1
    found = in_batches(describe, rows_of(lengths), cut=(), cost=COST_OF_GENERATION)
    assert found["number"].numpy()[:, 0].tolist() == list(range(70))
    assert found["batch"].numpy().tolist() == [32 if n > 6 else 6 for n in lengths]
    assert set(found["width"].numpy().tolist()) == {WIDTH}
