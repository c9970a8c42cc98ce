"""`fit` on raw strings under `MirroredStrategy` equals one device."""

import keras
import numpy as np
import pytest

from roformer_tf.pretraining.strategies import choose_strategy
from tests.layers.harness import numpy, variables
from tests.models import seq_2_seq
from tests.models.builders import NUM_CLASSES, task, texts

tf = pytest.importorskip("tensorflow")
pytestmark = [
    pytest.mark.slow,  # a graph for each replica
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
    ),
]
BATCH, STEPS = 8, 5


def trained(name, strategy, x, y):
    """Losses and weights after five steps of `fit` on strings. Dropout is off in the small models."""
    with strategy.scope():
        model = task(name, preprocessor={"sequence_length": 24})
        model.compile(
            keras.optimizers.AdamW(1e-3, weight_decay=0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    history = model.fit(dataset, verbose=0).history
    assert int(numpy(model.optimizer.iterations)) == STEPS
    weights = {path: numpy(w.value) for path, w in variables(model).items()}
    return history["loss"], weights, model.predict(x, batch_size=BATCH, verbose=0)


def same_training(loss, weights, expected_loss, expected_weights):
    """Sums over two halves have other roundings than over the whole, which Adam passes on to the weights."""
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for path, weight in expected_weights.items():
        np.testing.assert_allclose(weights[path], weight, atol=1e-5, err_msg=path)


def test_equals_one_device(rng):
    x = (texts(rng, BATCH * STEPS), texts(rng, BATCH * STEPS))
    y = rng.integers(0, NUM_CLASSES, size=BATCH * STEPS)
    loss, weights, predictions = trained("classifier", tf.distribute.get_strategy(), x, y)
    strategy = choose_strategy(cpu_replicas=2)
    assert strategy.num_replicas_in_sync == 2
    other_loss, other_weights, other_predictions = trained("classifier", strategy, x, y)
    same_training(other_loss, other_weights, loss, weights)
    np.testing.assert_allclose(other_predictions, predictions, atol=1e-4)


def trained_translator(strategy):
    """Losses and weights after three steps. In each batch both replicas have equally many target tokens."""
    texts = seq_2_seq.TEXTS
    rows = [0, 1, 1, 0, 2, 3, 3, 2, 4, 5, 5, 4]
    with strategy.scope():
        model = seq_2_seq.translator(dropout=0.0, num_layers=1)
        # an epsilon that keeps the step of a gradient that should be 0 (of the keys' biases) from following its noise
        model.compile(keras.optimizers.Adam(1e-2, beta_2=0.98, epsilon=1e-3))
    pairs = [texts[i] for i in rows], [texts[i - 2] for i in rows]
    dataset = tf.data.Dataset.from_tensor_slices((pairs,)).batch(4)
    loss = model.fit(dataset, verbose=0).history["loss"]
    return loss, {path: numpy(w.value) for path, w in variables(model).items()}


def test_translation_equals_one_device():
    loss, weights = trained_translator(tf.distribute.get_strategy())
    other_loss, other_weights = trained_translator(choose_strategy(cpu_replicas=2))
    same_training(other_loss, other_weights, loss, weights)
