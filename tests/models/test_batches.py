"""The data of `fit`: shuffled, split, and errors that name the example."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.models.batches import batched, split_columns, to_columns
from tests.layers.harness import quantized
from tests.models.builders import task, tokenizer

TEXTS, LABELS = ["天地", "玄黄宇宙", "日月盈昃", "辰宿"], [0, 1, 2, 1]


@pytest.fixture(scope="module")
def classifier():
    """Runs eagerly: tracing a graph for each `fit` would take longer than the few steps."""
    model = task("classifier", preprocessor={})
    model.compile(run_eagerly=True)
    return model


def test_every_epoch_has_each_example_once_in_a_new_order():
    x = {"a": np.arange(50), "b": [[i, -i] for i in range(50)]}
    dataset = batched(to_columns(x, list(range(50)), np.arange(50.0)), batch_size=8, shuffle=True)
    assert dataset.cardinality() == 7
    orders = []
    for _ in range(2):
        batches = [(x["a"], x["b"], y, w) for x, y, w in dataset.as_numpy_iterator()]
        a, b, y, w = (np.concatenate(column) for column in zip(*batches, strict=True))
        assert (a == y).all() and (a == w).all() and (b == np.stack([a, -a], 1)).all()
        assert sorted(a) == list(range(50))
        orders.append(list(a))
    assert orders[0] != orders[1] and list(range(50)) not in orders


@pytest.mark.parametrize("shuffle", [True, False])
def test_fit_shuffles_lists_unless_told_not_to(shuffle):
    seen, labels = [], list(range(3)) * 13 + [0]

    class Loss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            tf.py_function(lambda y: seen.append(y.numpy().ravel().tolist()), [y_true], [])
            return tf.reduce_sum(y_pred, -1)

    model = task("classifier", preprocessor={}, num_layers=1)
    model.compile("sgd", Loss(), metrics=[], run_eagerly=True)
    model.fit(TEXTS * 10, labels, batch_size=40, shuffle=shuffle, verbose=0)
    assert (seen[0] != labels) == shuffle


@pytest.mark.parametrize("pairs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_validation_split_of_lists(pairs, classifier):
    x = (TEXTS, TEXTS[::-1]) if pairs else TEXTS
    history = classifier.fit(x, LABELS, validation_split=0.25, verbose=0).history
    last = tuple(column[-1:] for column in x) if pairs else x[-1:]
    expected = classifier.evaluate(last, LABELS[-1:], return_dict=True, verbose=0)
    assert abs(history["val_loss"][0] - expected["loss"]) < 1e-6
    first, values = split_columns(to_columns(TEXTS, LABELS), 0.25)
    assert first[0].shape[0] == 3 and values[1].numpy().tolist() == [1]
    with pytest.raises(ValueError, match="Received: validation_split=0.999 for 4 examples"):
        classifier.fit(TEXTS, LABELS, validation_split=0.999, verbose=0)


@pytest.mark.parametrize(
    "value",
    [
        (TEXTS, LABELS),
        pytest.param([TEXTS, LABELS], marks=pytest.mark.slow),
        (TEXTS, LABELS, np.ones(4, "float32")),
    ],
)
def test_validation_data(value, classifier):
    history = classifier.fit(TEXTS, LABELS, validation_data=value, batch_size=2, verbose=0).history
    expected = classifier.evaluate(TEXTS, LABELS, return_dict=True, verbose=0)
    assert abs(history["val_loss"][0] - expected["loss"]) < 1e-5


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (["天", None], TypeError, "None of type NoneType as example 1"),
        (["天", float("nan")], TypeError, "nan of type float as example 1"),
        (np.array(["天", 3], dtype=object), TypeError, "3 of type int as example 1"),
        (list(zip(TEXTS, TEXTS, strict=True)), TypeError, "pairs are a tuple of two lists"),
        ([TEXTS, TEXTS], TypeError, "pairs are a tuple of two lists"),
        ((["天"], [None]), TypeError, "as example 0"),
        (np.array(TEXTS)[:, None], TypeError, "of type list as example 0"),
        ({"texts": TEXTS}, TypeError, r"Received: \['texts'\]"),
        ("天地", ValueError, "Expected a list of texts"),
        (("天地", "玄黄"), ValueError, "Expected a list of texts"),
    ],
)
def test_wrong_texts_raise_errors(x, error, message, classifier):
    for method in (classifier.predict, classifier.evaluate, classifier.fit):
        with pytest.raises(error, match=message):
            method(x)


@pytest.mark.parametrize("text", ["天地", "天地".encode(), np.array("天地"), tf.constant("天地")])
def test_one_text_may_be_of_any_type(text, classifier):
    assert classifier.classify(text) == classifier.classify(["天地"])[0]
    embed = functools.partial(classifier.embed, pooling="mean")
    np.testing.assert_array_equal(embed(text), embed("天地"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b", "c", "a"], "labels such as 'a'"),
        ([0, 1, None, 1], "labels such as None"),
        ([0, 1, float("nan"), 1], "A label is NaN"),
        ([0, 1], "must be of one length. Received: 4, 2 examples"),
    ],
)
def test_wrong_labels_raise_errors(labels, message, classifier):
    for method in (classifier.evaluate, classifier.fit):
        with pytest.raises(ValueError, match=message):
            method(TEXTS, labels)
    with pytest.raises(ValueError, match=message):
        classifier.fit(TEXTS, LABELS, validation_data=(TEXTS, labels))


def test_the_error_of_a_label_in_validation_data_comes_once(classifier):
    values = tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 2, 9])).batch(2)
    with pytest.raises(ValueError, match="out of range") as caught:
        classifier.fit(TEXTS, LABELS, validation_data=values, verbose=0)
    assert str(caught.value).count("out of range") == 1


def test_a_number_instead_of_weights_raises_an_error(classifier):
    with pytest.raises(ValueError, match="pass `batch_size` by its name"):
        classifier.fit(TEXTS, LABELS, 2)


@pytest.mark.slow
def test_fit_of_a_new_model_compiles_with_xla():
    model = task("classifier", preprocessor={"padding": "max_length"})
    model.compile(jit_compile=True)
    assert np.isfinite(model.fit(TEXTS, LABELS, verbose=0).history["loss"]).all()


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_a_task_that_has_seen_no_text_can_be_quantized():
    tokenizer.cache_clear()
    model = task("classifier", preprocessor={})
    quantized(model)
    assert np.isfinite(model.predict(TEXTS, verbose=0)).all()


@pytest.mark.slow
def test_labels_with_and_without_an_axis_of_one():
    """In any order: Keras by itself fails on the second form."""
    model = task("classifier", preprocessor={})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    columns = [[label] for label in LABELS]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, columns)).batch(4)
    for y in (columns, LABELS, np.array(columns)):
        assert np.isfinite(model.fit(TEXTS, y, verbose=0).history["loss"]).all()
    losses = [model.evaluate(dataset, verbose=0), model.evaluate(TEXTS, LABELS, verbose=0)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
