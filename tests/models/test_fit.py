"""`fit` takes the steps of the formulas, and no step after the last batch."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from tests.layers.harness import assert_equal, gradients, numpy, variables
from tests.layers.numpy_adam import NumpyAdam
from tests.models.builders import NUM_CLASSES, data, task, texts
from tests.models.test_token_classifier import tagger

# Keras warns whenever a dataset of unknown length ends.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")
# Four batches of four sequences, in which ids repeat: there are 43 ids for 36 tokens of a batch
STEPS, BATCH = 4, 4


def batches(rng):
    x, y, _ = data("classifier", rng, STEPS * BATCH)
    x["token_ids"][:, 2:5] = 7  # and some more than others
    return x, y


def loss_gradients(model, x, y, weights=None):
    """Returns the gradients of the (weighted) mean cross entropy by name, without `fit`."""
    logits = numpy(model(x)).astype("float64")
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    cotangent = (probabilities - np.eye(NUM_CLASSES)[y]) / len(y)
    if weights is not None:
        cotangent *= weights[:, None]
    _, found = gradients(lambda: model(x), [], cotangent, model)
    names = {id(w): path for path, w in variables(model).items()}
    return {names[id(w)]: g for w, g in zip(model.trainable_variables, found, strict=True)}


def by_formula(model, x, y, epochs, **options):
    """Returns the weights after training with Adam in NumPy, on the model's gradients."""
    adam = NumpyAdam({p: numpy(w.value) for p, w in variables(model).items()}, **options)
    for _ in range(epochs):
        for step in range(STEPS):
            part = slice(step * BATCH, (step + 1) * BATCH)
            for path, weight in variables(model).items():
                weight.assign(adam.values[path].astype("float32"))
            adam.step(loss_gradients(model, {k: v[part] for k, v in x.items()}, y[part]))
    return adam.values


def distance(model, expected):
    return max(np.abs(numpy(w.value) - expected[p]).max() for p, w in variables(model).items())


def of_unknown_length(x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).filter(lambda x, y: True)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    return dataset


def test_adamw_takes_the_steps_of_the_formula(rng):
    """Three epochs of four steps: twelve updates, and twelve decays of the weights."""
    x, y = batches(rng)
    options = {"learning_rate": 1e-2, "weight_decay": 0.1, "epsilon": 1e-3}
    expected = by_formula(task("classifier"), x, y, 3, **options)
    for source in ({"x": x, "y": y, "batch_size": BATCH}, {"x": of_unknown_length(x, y)}):
        model = task("classifier")
        model.compile(keras.optimizers.AdamW(**options))
        model.fit(**source, epochs=3, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 12
        # float32 through twelve steps of 1e-2; one more decay would change each weight by 1e-3
        assert distance(model, expected) < 2e-5


def test_stock_fit_takes_a_phantom_step():
    """The reason for `RoFormerTask.train_step`."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    model.fit(of_unknown_length(np.ones((16, 2)), np.ones((16, 1))), epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 15, (
        "Keras no longer takes a step beyond the end of a dataset: the override may go"
    )


def test_phantom_step_of_moving_averages(rng):
    """Each step beyond the end would halve the distance of average and weights."""
    x, y = batches(rng)
    finals = []
    for source in ({"x": x, "y": y, "batch_size": BATCH}, {"x": of_unknown_length(x, y)}):
        model = task("classifier")
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
        model.fit(**source, epochs=2, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 8
        finals.append(model.get_weights())  # fit leaves the averages in the weights
    assert_equal(*finals, atol=1e-7)


@pytest.mark.parametrize("column", [False, True])
def test_sample_weights(rng, column):
    x, y = batches(rng)
    weights = rng.uniform(0, 2, size=len(y)).astype("float32")
    model = task("classifier")
    found = loss_gradients(model, x, y, weights)
    expected = {p: numpy(w.value) - 0.5 * found[p] for p, w in variables(model).items()}
    model.compile(keras.optimizers.SGD(0.5))
    model.evaluate(x, y, sample_weight=weights if column else weights[:, None], verbose=0)
    model.fit(x, y, weights[:, None] if column else weights, batch_size=len(y), verbose=0)
    assert distance(model, expected) < 1e-6


@pytest.mark.parametrize("group_by_length", [False, True])
def test_sample_weights_without_labels(rng, group_by_length):
    """A language model, whose preprocessor makes the labels, learns nothing from a weight of 0."""
    x, weights = texts(rng, 4), [1.0, 0.0, 2.0, 0.0]
    losses = []
    for given in ((x, None, tuple(weights)), (x[::2], None, weights[::2])):
        model = task("causal_lm", preprocessor={})
        model.compile("sgd", "auto", run_eagerly=True)
        history = model.fit(*given, group_by_length=group_by_length, shuffle=False, verbose=0)
        losses += [history.history["loss"][0], model.evaluate(*given, verbose=0)[0]]
        batches = ((np.array(given[0]), None, np.array(given[2])) for _ in "1")
        losses.append(model.evaluate(batches, verbose=0)[0])
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=1e-6)
    assert losses[1] == pytest.approx(losses[2], rel=1e-6)


@pytest.mark.parametrize("name", ["causal_lm", "classifier", "tagger"])
def test_weights_of_tokens_are_refused(rng, name):
    """A text has one weight: its tokens are not seen from outside."""
    model = tagger() if name == "tagger" else task(name, preprocessor={})
    y = {"causal_lm": None, "classifier": np.array([0, 1]), "tagger": [[], []]}[name]
    given = {"sample_weight": np.ones((2, 5)), "verbose": 0}
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"one number for each .* Received: shape .*, 5\)"):
            call(texts(rng, 2), y, **given)


@pytest.mark.parametrize("call", ["fit", "train_on_batch", "evaluate", "evaluate_one_batch"])
@pytest.mark.parametrize("metrics", [["accuracy"], None])
def test_a_first_step_is_traced_once(rng, calls_of, call, metrics):
    """TensorFlow traces a step twice if it creates variables, such as those of a named metric."""
    traced = [calls_of(keras.Model, name) for name in ("train_step", "test_step")]
    x, y = batches(rng)
    model = task("classifier")
    if metrics:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss, metrics=metrics)
    if call == "fit":
        model.fit(x, y, batch_size=BATCH, verbose=0)
    elif call == "train_on_batch":
        model.train_on_batch(x, y)
    else:
        size = BATCH if call == "evaluate" else len(y)
        found = model.evaluate(x, y, batch_size=size, verbose=0, return_dict=True)
        (accuracy,) = (value for name, value in found.items() if name != "loss")
        assert accuracy == np.mean(numpy(model(x)).argmax(-1) == y)
    assert sum(map(len, traced)) == 1


@pytest.fixture
def seen(monkeypatch):
    """The labels of each step of `fit`, and the number of iterators made for it."""
    found = types.SimpleNamespace(labels=[], iterators=0)
    step, make = keras.Model.train_step, OwnedIterator.__init__

    def train_step(model, batch):
        tf.py_function(lambda y: found.labels.append(y.numpy()), [batch[1]], [])
        return step(model, batch)

    def counted(iterator, dataset=None, *args, **kwargs):
        found.iterators += dataset is not None
        make(iterator, dataset, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "train_step", train_step)
    monkeypatch.setattr(OwnedIterator, "__init__", counted)
    return found


@pytest.mark.parametrize("values", [False, True])
def test_an_epoch_has_each_example_once_from_one_iterator(rng, seen, values):
    """Keras makes two iterators for each epoch, and does not use the second."""
    x, _ = batches(rng)
    x = {name: column[:10] for name, column in x.items()}
    model = task("classifier", num_classes=10)
    model.compile(keras.optimizers.SGD(0.0))
    options = {"validation_data": (x, np.arange(10))} if values else {}
    history = model.fit(x, np.arange(10), batch_size=BATCH, epochs=3, verbose=0, **options)
    assert seen.iterators == 1 + 3 * values  # one for each evaluation
    assert int(model.optimizer.iterations) == 9 and history.params["steps"] == 3
    epochs = [np.concatenate(seen.labels[start : start + 3]) for start in (0, 3, 6)]
    assert [len(labels) for labels in seen.labels] == [4, 4, 2] * 3
    assert all(np.array_equal(np.sort(labels), np.arange(10)) for labels in epochs)
    assert len({tuple(labels) for labels in epochs}) == 3  # in another order each time
    found = model.evaluate(x, np.arange(10), batch_size=BATCH, verbose=0)
    expected = model.evaluate(x, np.arange(10), batch_size=10, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    if values:
        np.testing.assert_allclose(history.history["val_loss"][-1], expected[0], rtol=1e-6)


def test_validation_in_every_epoch_under_a_strategy(rng):
    """Before each evaluation Keras takes a batch of the iterator of the one before."""
    x, y = batches(rng)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = task("classifier")
        model.compile(keras.optimizers.SGD(0.0))
    history = model.fit(x, y, batch_size=BATCH, epochs=3, validation_data=(x, y), verbose=0)
    expected = model.evaluate(x, y, verbose=0)[0]
    np.testing.assert_allclose(history.history["val_loss"], [expected] * 3, rtol=1e-6)
