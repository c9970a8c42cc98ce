"""The losses of RoFormer-Sim: values and gradients of float64 NumPy functions written from the original's lines."""

import keras
import numpy as np
import pytest

from roformer_tf.models import GroupedCrossentropy, InBatchContrastive, SimilarityDistillation
from roformer_tf.models.grouped_crossentropy import grouped_accuracy
from roformer_tf.models.in_batch_contrastive import nearest_is_positive
from tests.layers.harness import gradients, numpy
from tests.oracles.numpy_similarity import contrastive, distillation, grouped, neighbours

# float32 rounds cosines by 6e-8; times 20 or 100, in a mean
NOISE = 2e-5
CASES = {
    "contrastive": (InBatchContrastive(), lambda y, v: contrastive(v)),
    "contrastive_of_scale_1": (InBatchContrastive(1.0), lambda y, v: contrastive(v, 1.0)),
    "distillation": (SimilarityDistillation(), distillation),
    "grouped": (GroupedCrossentropy((2, 3)), lambda y, v: grouped(y, v, (2, 3))),
}


def labels_of(name, rng, rows):
    if name.startswith("contrastive"):
        return neighbours(rows)
    if name == "distillation":
        return rng.normal(size=(rows, 3)).astype("float32")
    return rng.integers(0, 5, size=rows)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name, rng):
    loss, oracle = CASES[name]
    vectors = rng.normal(size=(8, 5)).astype("float32")
    labels = labels_of(name, rng, 8)
    (value,), (gradient,) = gradients(lambda v: loss(labels, v), [vectors], np.float32(1))
    vectors = vectors.astype("float64")
    assert abs(value - oracle(labels, vectors)) < NOISE
    for _ in range(3):
        step = 1e-5 * rng.normal(size=vectors.shape)
        numeric = (oracle(labels, vectors + step) - oracle(labels, vectors - step)) / 2
        assert abs((gradient * step).sum() - numeric) < 5 * NOISE * np.abs(step).max()


def test_rows_of_one_number_are_positives(rng):
    """In any order and number; a row alone counts as 0."""
    vectors = rng.normal(size=(6, 4)).astype("float32")
    numbers = np.array([[7], [3], [7], [9], [7], [3]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = 20 * unit @ unit.T
    expected = 0
    for i in range(6):
        others = [j for j in range(6) if j != i]
        friends = [j for j in others if numbers[j] == numbers[i]]
        log_sum = np.log(np.exp(scores[i, others]).sum())
        expected += sum(log_sum - scores[i, j] for j in friends) / max(len(friends), 1)
    assert abs(float(InBatchContrastive()(numbers, vectors)) - expected / 6) < NOISE


def test_vectors_of_length_zero_give_finite_gradients():
    for loss, y in [(InBatchContrastive(), neighbours(4)), (SimilarityDistillation(), np.eye(4))]:
        _, (gradient,) = gradients(lambda v: loss(y, v), [np.zeros((4, 3), "float32")], 1.0)  # noqa: B023
        assert np.isfinite(gradient).all()


def test_accuracies(rng):
    vectors = rng.normal(size=(8, 5)).astype("float32")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 3 * np.eye(8)
    expected = cosines.argmax(1) == np.arange(8) ^ 1
    np.testing.assert_array_equal(numpy(nearest_is_positive(neighbours(8), vectors)), expected)
    logits, labels = rng.normal(size=(50, 5)).astype("float32"), rng.integers(0, 5, size=50)
    best = np.where(labels < 2, logits[:, :2].argmax(1), 2 + logits[:, 2:].argmax(1))
    found = numpy(grouped_accuracy(labels, logits, (2, 3)))
    np.testing.assert_array_equal(found, best == labels)


def test_round_trip():
    for loss in (InBatchContrastive(5.0), SimilarityDistillation(1.0), GroupedCrossentropy((1, 4))):
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert type(again) is type(loss) and again.get_config() == loss.get_config()


def test_labels_of_the_other_loss_raise_errors(rng):
    vectors = rng.normal(size=(4, 5)).astype("float32")
    with pytest.raises(ValueError, match="must be one number for each text: leave `y` out"):
        InBatchContrastive()(vectors, vectors)
    with pytest.raises(ValueError, match="must be the teacher's vectors"):
        SimilarityDistillation()(neighbours(4), vectors)
