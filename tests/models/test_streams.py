"""Tasks train on generators and `PyDataset`s of strings, and on inputs already preprocessed."""

import itertools

import keras
import numpy as np
import pytest

from tests.models import seq_2_seq
from tests.models.builders import task, texts

# The first batches are of equal width: a width learned from them would be wrong.
WIDTHS = (4, 4, 9)


class Batches(keras.utils.PyDataset):
    def __init__(self, batches, **kwargs):
        super().__init__(**kwargs)
        self.batches = batches
        self.ends = 0

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]

    def on_epoch_end(self):
        self.ends += 1


def model_of(kind, **options):
    if kind == "seq_2_seq":
        model = seq_2_seq.translator(preprocessing={}, dropout=0.0, num_layers=1)
        model.compile("sgd", **options)
    else:
        model = task("classifier", preprocessor={})
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, **options)
    return model


def batches_of(kind):
    rng = np.random.default_rng(1)
    for width in WIDTHS:
        x = texts(rng, 3, width, width)
        if kind != "texts":
            x = (x, texts(rng, 3, 2, 5))
        yield (x,) if kind == "seq_2_seq" else (x, rng.integers(0, 3, size=3))


def trained_by_hand(kind, epochs):
    """Returns the weights after `train_on_batch` with each batch."""
    model = model_of(kind, run_eagerly=True)
    for _ in range(epochs):
        for batch in batches_of(kind):
            model.train_on_batch(*batch)
    return model.get_weights()


@pytest.mark.parametrize(
    "kind",
    ["texts", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pairs", "seq_2_seq"))],
)
def test_streams_of_strings_train_as_their_batches_do(kind):
    """The same numbers for a generator, a `PyDataset` and batches that are preprocessed already."""
    expected = trained_by_hand(kind, epochs=2)
    batches = list(batches_of(kind))
    steps = len(batches)
    generator = itertools.chain(batches, batches)
    streams = {
        "generator": ((batch for batch in generator), {"steps_per_epoch": steps}),
        "PyDataset": (Batches(batches), {}),
        "PyDataset with threads": (Batches(batches, workers=3), {}),
    }
    for name, (stream, options) in streams.items():
        # One `tf.function`, which sees batches of several widths; the others would be as slow.
        eagerly = (kind, name) != ("texts", "PyDataset")
        model = model_of(kind, run_eagerly=eagerly, jit_compile=False)
        history = model.fit(stream, epochs=2, shuffle=False, verbose=0, **options)
        assert len(history.epoch) == 2 and history.params["steps"] == steps, name
        for weight, value in zip(model.get_weights(), expected, strict=True):
            # Eager and compiled steps add up in another order.
            np.testing.assert_allclose(weight, value, rtol=0, atol=2e-6, err_msg=name)
        if isinstance(stream, Batches):
            assert stream.ends == 2, name


def test_inputs_that_are_preprocessed_already():
    """They pass the preprocessor in every method, and give the numbers of the strings."""
    x, y = next(iter(batches_of("texts")))
    losses = []
    for convert in (lambda model: x, lambda model: model.preprocessor(x)):
        model = model_of("texts", run_eagerly=True)
        given = convert(model)
        outputs = [model.predict(given, verbose=0), model.predict_on_batch(given)]
        np.testing.assert_allclose(*outputs, atol=1e-6)
        results = [
            model.evaluate(given, y, verbose=0),
            model.test_on_batch(given, y),
            model.train_on_batch(given, y),
            model.fit(given, y, verbose=0).history["loss"],
            model.evaluate(Batches([(given, y)]), verbose=0),
        ]
        losses.append([np.ravel(result)[0] for result in results])
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.slow
def test_predict_evaluate_and_validate_with_streams():
    model = model_of("texts", jit_compile=False)
    batches = list(batches_of("texts"))
    x = sum((batch[0] for batch in batches), [])
    y = np.concatenate([batch[1] for batch in batches])
    expected_results = model.evaluate(x, y, verbose=0)
    steps = len(batches)
    for results in (
        model.evaluate(Batches(batches), verbose=0),
        model.evaluate((batch for batch in batches), steps=steps, verbose=0),
    ):
        np.testing.assert_allclose(results, expected_results, rtol=1e-6)
    without_labels = Batches([batch[:1] for batch in batches])
    expected = model.predict(x, verbose=0)
    # Padding has no weight, but the order of sums differs with the width.
    np.testing.assert_allclose(model.predict(without_labels, verbose=0), expected, atol=1e-6)
    model.compile(keras.optimizers.SGD(0.0), model.loss, run_eagerly=True)
    history = model.fit(Batches(batches), validation_data=Batches(batches), epochs=2, verbose=0)
    loss = np.ravel(expected_results)[0]
    np.testing.assert_allclose(history.history["val_loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(history.history["loss"], loss, rtol=1e-6)


@pytest.mark.parametrize("argument", ["steps_per_epoch", "validation_steps"])
def test_a_generator_needs_steps_for_several_epochs(argument):
    model, batches = model_of("texts"), list(batches_of("texts"))
    generator = (batch for batch in batches)
    data = (generator, None) if argument == "steps_per_epoch" else (Batches(batches), generator)
    with pytest.raises(ValueError, match=f"a generator, epochs=2, {argument}=None"):
        model.fit(data[0], validation_data=data[1], epochs=2, verbose=0)
    assert len(list(generator)) == len(batches)


def test_a_task_without_preprocessor_takes_streams_of_ids():
    model = task("classifier")
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    rng = np.random.default_rng(0)
    batches = [
        ({"token_ids": rng.integers(5, 40, size=(2, width))}, np.array([0, 1])) for width in WIDTHS
    ]
    assert np.isfinite(model.fit(Batches(batches), verbose=0).history["loss"]).all()
    generator = (batch for batch in batches)
    assert np.isfinite(model.evaluate(generator, steps=len(batches), verbose=0)).all()


@pytest.fixture(scope="module")
def classifier():
    return task("classifier", preprocessor={})


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "expected at least one batch"),
        (["天地"], ValueError, "Received: 天地"),
        ([("天地", 0)], ValueError, "Expected a list of texts"),
        ([(["天", None], [0, 1])], TypeError, "None of type NoneType as example 1"),
        ([(["天", "地"], [0])], ValueError, "must be of one length. Received: 2, 1"),
        ([(["天", "地"], [0, 9])], ValueError, "labels from 0 to 9"),
    ],
)
def test_wrong_batches_raise_errors(classifier, batches, error, message):
    for stream in ((batch for batch in batches), Batches(batches)):
        for method in (classifier.fit, classifier.evaluate):
            if method == classifier.fit or isinstance(stream, Batches):  # a generator is read once
                with pytest.raises(error, match=message):
                    method(stream, verbose=0)
