"""Label smoothing against its definition in float64, and against Keras' loss of one-hot labels."""

import keras
import numpy as np
import pytest

from roformer_tf.models import SmoothedCrossentropy
from tests.layers.harness import gradients, numpy

CLASSES = 37


@pytest.fixture
def case(rng):
    logits = rng.normal(size=(3, 5, CLASSES), scale=3).astype("float32")
    labels = rng.integers(CLASSES, size=(3, 5))
    weights = (np.arange(5) < [[5], [2], [0]]).astype("float32")
    return logits, labels, weights


def definition(logits, labels, smoothing):
    """-sum over the classes of q log p, with q = (1 - smoothing) one-hot + smoothing / classes; and its gradient."""
    logits = logits.astype("float64")
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    q = (1 - smoothing) * np.eye(CLASSES)[labels] + smoothing / CLASSES
    return -(q * np.log(p)).sum(-1), p - q


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equals_its_definition(case, smoothing):
    logits, labels, weights = case
    losses, gradient = definition(logits, labels, smoothing)
    loss = SmoothedCrossentropy(smoothing)
    found, (of_logits,) = gradients(
        lambda x: loss(labels, x, sample_weight=weights), [logits], np.ones(())
    )
    # float32 sums of 37 numbers of size 10
    np.testing.assert_allclose(found[0], (losses * weights).sum() / weights.sum(), rtol=2e-6)
    np.testing.assert_allclose(of_logits, gradient * weights[..., None] / weights.sum(), atol=1e-7)


def test_equals_keras_with_one_hot_labels(case):
    logits, labels, weights = case
    ours = SmoothedCrossentropy(0.1, reduction="sum")
    keras_loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1, reduction="sum"
    )
    expected = keras_loss(np.eye(CLASSES)[labels], logits, sample_weight=weights)
    np.testing.assert_allclose(
        numpy(ours(labels, logits, sample_weight=weights)), numpy(expected), rtol=2e-6
    )
    again = SmoothedCrossentropy.from_config(ours.get_config())
    assert again.label_smoothing == 0.1 and again.reduction == "sum"


def test_label_smoothing_is_less_than_1():
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        SmoothedCrossentropy(1.0)
