"""`fit` on raw strings under `MirroredStrategy` equals one device."""

import keras
import numpy as np
import pytest

from roformer_tf.models import fill_mask
from roformer_tf.pretraining.strategies import choose_strategy
from tests.layers.harness import assert_equal, numpy, variables
from tests.models import seq_2_seq
from tests.models.builders import NUM_CLASSES, task, texts, tokenizer

tf = pytest.importorskip("tensorflow")
pytestmark = [
    pytest.mark.slow,  # a graph for each replica
    pytest.mark.tensorflow("tf.distribute is TensorFlow's"),
]


def trained(strategy, make, optimizer, x, batch_size):
    """Returns the model and its losses after `fit` on strings. The small models have no dropout."""
    tokenizer.cache_clear()  # everything is made in the scope
    with strategy.scope():
        model = make()
        model.compile(optimizer())
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(batch_size)
    losses = model.fit(dataset, verbose=0).history["loss"]
    assert int(numpy(model.optimizer.iterations)) == int(dataset.cardinality())
    return model, losses


def trained_on_one_and_on_two(*args):
    """Checks that losses and weights are equal, and returns both models.

    Sums over two halves have other roundings than over the whole, which Adam passes on.
    """
    strategy = choose_strategy(cpu_replicas=2)
    assert strategy.num_replicas_in_sync == 2
    one, losses = trained(tf.distribute.get_strategy(), *args)
    two, other_losses = trained(strategy, *args)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    weights = {path: numpy(w.value) for path, w in variables(two).items()}
    for path, weight in variables(one).items():
        np.testing.assert_allclose(weights[path], numpy(weight.value), atol=1e-5, err_msg=path)
    return one, two


def test_equals_one_device(rng):
    x = (texts(rng, 40), texts(rng, 40))
    y = rng.integers(0, NUM_CLASSES, size=40)
    models = trained_on_one_and_on_two(
        lambda: task("classifier", preprocessor={"sequence_length": 24}),
        lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.01),
        (x, y),
        8,
    )
    one, two = (model.predict(x, batch_size=8, verbose=0) for model in models)
    np.testing.assert_allclose(two, one, atol=1e-4)
    # of the last batch, which may be the first that runs, one replica has two rows and one has one
    first, second = (column[:11] for column in x)
    one, two = (m.evaluate((first, second), y[:11], batch_size=4, verbose=0) for m in models)
    np.testing.assert_allclose(two, one, rtol=1e-4)


def test_translation_equals_one_device():
    """In each batch both replicas have equally many target tokens."""
    numbers = [0, 1, 1, 0, 2, 3, 3, 2, 4, 5, 5, 4]
    pairs = [seq_2_seq.TEXTS[i] for i in numbers], [seq_2_seq.TEXTS[i - 2] for i in numbers]
    trained_on_one_and_on_two(
        lambda: seq_2_seq.translator(dropout=0.0, num_layers=1),
        # this epsilon keeps gradients that should be 0, of the keys' biases, from causing steps
        lambda: keras.optimizers.Adam(1e-2, beta_2=0.98, epsilon=1e-3),
        (pairs,),
        4,
    )


def test_vectors_scores_and_masks_equal_one_device(rng):
    """Several replicas give all rows each where a batch is not distributed."""
    sentences = texts(rng, 5)
    found = []
    for strategy in (tf.distribute.get_strategy(), choose_strategy(cpu_replicas=2)):
        with strategy.scope():
            gpt = task("causal_lm", preprocessor={"sequence_length": 24})
            masked_lm = task("masked_lm", preprocessor={"sequence_length": 24})
        masks = fill_mask(masked_lm, [f"{text}[MASK]" for text in sentences])
        scores = gpt.score(sentences)
        logits = gpt.predict(sentences, batch_size=2, verbose=0)
        logits = logits if isinstance(logits, np.ndarray) else logits.to_tensor().numpy()
        found.append(
            (
                *(masked_lm.embed(sentences, pooling=pooling) for pooling in ("mean", "cls")),
                *(scores[name] for name in sorted(scores)),
                logits / 10,  # they are up to ten, so are their roundings
                np.array([[p for _, p in row[0]] for row in masks]),
            )
        )
    assert_equal(*reversed(found), rtol=1e-5, atol=1e-6)
