"""Losses against float64 NumPy functions: those of RoFormer-Sim follow the original's lines."""

import keras
import numpy as np
import pytest

from roformer_tf.models import (
    GroupedCrossentropy,
    InBatchContrastive,
    SimilarityDistillation,
    SmoothedCrossentropy,
)
from roformer_tf.models.grouped_crossentropy import grouped_accuracy
from roformer_tf.models.in_batch_contrastive import nearest_is_positive
from tests.layers.harness import gradients, numpy
from tests.models.builders import task
from tests.oracles import numpy_roformer as oracle
from tests.oracles.numpy_similarity import contrastive, distillation, grouped, neighbours

# float32 rounds cosines by 6e-8; times 20 or 100, in a mean
NOISE = 2e-5
CASES = {
    "contrastive": (InBatchContrastive(), lambda y, v: contrastive(v)),
    "contrastive_of_scale_1": (InBatchContrastive(1.0), lambda y, v: contrastive(v, 1.0)),
    "distillation": (SimilarityDistillation(), distillation),
    "grouped": (GroupedCrossentropy((2, 3)), lambda y, v: grouped(y, v, (2, 3))),
}
CLASSES = 37


def labels_of(name, rng, count):
    if name.startswith("contrastive"):
        return neighbours(count)
    if name == "distillation":
        return rng.normal(size=(count, 3)).astype("float32")
    return rng.integers(0, 5, size=count)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name, rng):
    loss, expected = CASES[name]
    vectors = rng.normal(size=(8, 5)).astype("float32")
    labels = labels_of(name, rng, 8)
    (value,), (gradient,) = gradients(lambda v: loss(labels, v), [vectors], np.float32(1))
    vectors = vectors.astype("float64")
    assert abs(value - expected(labels, vectors)) < NOISE
    for _ in range(3):
        step = 1e-5 * rng.normal(size=vectors.shape)
        numeric = (expected(labels, vectors + step) - expected(labels, vectors - step)) / 2
        assert abs((gradient * step).sum() - numeric) < 5 * NOISE * np.abs(step).max()


def test_texts_with_the_same_number_are_positives(rng):
    """In any order, and any number of them. A text without a positive counts as 0."""
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


@pytest.fixture
def case(rng):
    logits = rng.normal(size=(3, 5, CLASSES), scale=3).astype("float32")
    labels = rng.integers(CLASSES, size=(3, 5))
    weights = (np.arange(5) < [[5], [2], [0]]).astype("float32")
    return logits, labels, weights


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_equals_its_definition(case, smoothing):
    logits, labels, weights = case
    p = oracle.softmax(logits.astype("float64"))
    q = (1 - smoothing) * np.eye(CLASSES)[labels] + smoothing / CLASSES
    losses = -(q * np.log(p)).sum(-1)
    found, (of_logits,) = gradients(
        lambda x: SmoothedCrossentropy(smoothing)(labels, x, sample_weight=weights),
        [logits],
        np.ones(()),
    )
    # float32 sums of 37 numbers of size 10
    np.testing.assert_allclose(found[0], (losses * weights).sum() / weights.sum(), rtol=2e-6)
    expected = (p - q) * weights[..., None] / weights.sum()
    np.testing.assert_allclose(of_logits, expected, atol=1e-7)


def test_label_smoothing_equals_that_of_keras_with_one_hot_labels(case):
    logits, labels, weights = case
    options = {"label_smoothing": 0.1, "reduction": "sum"}
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, **options)
    found = SmoothedCrossentropy(**options)(labels, logits, sample_weight=weights)
    expected = keras_loss(np.eye(CLASSES)[labels], logits, sample_weight=weights)
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=2e-6)


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm"])
def test_default_loss_of_language_models_is_the_mean_over_counted_tokens(name, rng):
    model = task(name)
    ids = rng.integers(1, 30, (4, 7)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    labels = rng.integers(0, 30, ids.shape)
    weights = (np.arange(7) < np.array([[7], [1], [3], [0]])).astype("float32")
    probabilities = oracle.softmax(numpy(model(inputs)).astype("float64"))
    chosen = np.take_along_axis(probabilities, labels[..., None], -1)[..., 0]
    expected = -(np.log(chosen) * weights).sum() / weights.sum()
    loss = model.evaluate(inputs, labels, sample_weight=weights, verbose=0)[0]
    np.testing.assert_allclose(loss, expected, rtol=2e-6)  # float32 sums of some 30 terms


@pytest.mark.parametrize(
    "loss",
    [
        InBatchContrastive(5.0),
        SimilarityDistillation(1.0),
        GroupedCrossentropy((1, 4)),
        SmoothedCrossentropy(0.2, reduction="sum"),
    ],
    ids=lambda loss: loss.name,
)
def test_round_trip(loss):
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is type(loss) and again.get_config() == loss.get_config()


def test_wrong_arguments_raise_errors(rng):
    vectors = rng.normal(size=(4, 5)).astype("float32")
    with pytest.raises(ValueError, match="must be one number for each text: leave `y` out"):
        InBatchContrastive()(vectors, vectors)
    with pytest.raises(ValueError, match="must be the teacher's vectors"):
        SimilarityDistillation()(neighbours(4), vectors)
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        SmoothedCrossentropy(1.0)
