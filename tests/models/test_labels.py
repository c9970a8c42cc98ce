"""Names of classes: as labels of `fit`, as answers of `classify`, saved with the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from tests.layers.harness import assert_equal
from tests.models.builders import backbone, saved_and_loaded, task, texts, tokenizer

NAMES = ["bad", "fair", "good"]


def classifier(**options):
    options = {"labels": NAMES, "num_classes": None, "preprocessor": {}, **options}
    return task("classifier", **options)


def test_names_train_as_numbers_do(rng):
    x = texts(rng, 6)
    numbers = np.array([0, 2, 1, 1, 0, 2])
    names = [NAMES[i] for i in numbers]
    expected = classifier()
    expected.compile("sgd", "auto", run_eagerly=True)
    expected.fit(x, numbers, verbose=0, shuffle=False)
    pairs = tf.data.Dataset.from_tensor_slices((x, names)).batch(6)
    for data in (
        (x, names),
        (pairs, None),
        (((x, names) for _ in range(1)), None),
        (((x, np.array(names)[:, None]) for _ in range(1)), None),
    ):
        model = classifier()
        model.compile("sgd", "auto", run_eagerly=True)
        model.fit(*data, verbose=0, shuffle=False, steps_per_epoch=1)
        assert_equal(model.get_weights(), expected.get_weights())
    for given in (np.array(names), np.array(names, object), tf.constant(names)):
        np.testing.assert_array_equal(model.encode_labels(given), numbers)
    model = classifier()
    model.compile("sgd", "auto", run_eagerly=True)
    model.train_on_batch(x, names)
    assert_equal(model.get_weights(), expected.get_weights())
    assert model.evaluate(x, names, verbose=0) == model.evaluate(x, numbers, verbose=0)


class Column:
    """A column as those of pandas and polars are."""

    def __init__(self, values):
        self.values, self.dtype = values, np.asarray(values).dtype

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __len__(self):
        return len(self.values)

    def to_list(self):
        return self.values


@pytest.mark.eager
@pytest.mark.parametrize("form", [Column, tf.constant, tuple])
def test_labels_of_every_form_are_checked(rng, form):
    x, nan = texts(rng, 2), float("nan")
    regression = task("classifier", num_classes=1, preprocessor={})
    for y, message in (
        ([1.0, nan], "A label is NaN"),
        ([nan, nan], "A label is NaN"),
        (["a", "b"], "needs numbers as labels. Received: labels such as b?'a'"),
    ):
        for call in (regression.fit, regression.evaluate):
            with pytest.raises(ValueError, match=message):
                call(x, form(y), verbose=0)
    for y, message in (
        ([0.2, 0.9], "must be integers from 0 .* such as 0.2.* For regression .* `num_classes=1`"),
        ([0, 3], "must be integers from 0 to .* Received: labels from 0 to 3"),
        (["bad", "worse"], "must be among .* Received: 'worse'"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier().fit(Column(x), form(y), verbose=0)


@pytest.mark.eager
def test_classify(rng):
    model, x = classifier(), texts(rng, 5)
    logits = model.predict(x, verbose=0).astype("float64")
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, found in zip(shares, model.classify(x), strict=True):
        assert [name for name, _ in found] == [NAMES[i] for i in np.argsort(-row)]
        np.testing.assert_allclose([p for _, p in found], np.sort(row)[::-1], rtol=1e-6)
    single = model.classify(x[0], top_k=1)
    assert len(single) == 1 and single[0][0] == NAMES[shares[0].argmax()]
    assert model.classify((x[0], x[1]))[0][0] in NAMES
    assert len(model.classify((x, x))) == 5
    numbered = task("classifier", preprocessor={})
    assert {name for name, _ in numbered.classify(x[0])} == {0, 1, 2}


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_of_other_activations(activation, rng):
    model, x = classifier(activation=activation), texts(rng, 3)
    expected = model.predict(x, verbose=0)
    for row, found in zip(expected, model.classify(x), strict=True):
        np.testing.assert_allclose([p for _, p in found], np.sort(row)[::-1], rtol=1e-6)


@pytest.mark.eager
def test_a_single_probability_has_two_names(rng):
    model = classifier(num_classes=1, activation="sigmoid", labels=["no", "yes"])
    x = texts(rng, 2)
    (probability,) = model.predict(x[:1], verbose=0)[0]
    assert dict(model.classify(x[0]))["yes"] == pytest.approx(probability)
    model.fit(x, ["no", "yes"], verbose=0)


@pytest.mark.eager
def test_names_are_saved(rng, tmp_path):
    model, text = classifier(), texts(rng, 1)[0]
    assert saved_and_loaded(model, tmp_path).classify(text) == model.classify(text)
    model.save_to_preset(tmp_path / "preset")
    cls = roformer_tf.RoFormerTextClassifier
    assert cls.from_preset(tmp_path / "preset").classify(text) == model.classify(text)
    renamed = cls.from_preset(tmp_path / "preset", labels=["x", "y", "z"])
    assert [p for _, p in renamed.classify(text)] == [p for _, p in model.classify(text)]
    model.backbone.save_to_preset(tmp_path / "backbone")
    new = cls.from_preset(tmp_path / "backbone", labels=["x", "y"], preprocessor=None)
    assert new.num_classes == 2 and new.labels == ["x", "y"]


@pytest.mark.eager
def test_wrong_names(rng):
    model, x = classifier(), texts(rng, 2)
    message = "Labels must be among .*Received: 'great'"
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message):
            call(x, ["bad", "great"], verbose=0)
    data = tf.data.Dataset.from_tensor_slices((x, ["bad", "great"])).batch(2)
    with pytest.raises(ValueError, match="not among the `labels`"):
        model.fit(data, verbose=0)
    with pytest.raises(ValueError, match="make the classifier with `labels`"):
        task("classifier", preprocessor={}).fit(x, ["bad", "good"], verbose=0)
    for labels, message in (
        (["a", "b"], "must name 3 classes, in their order. Received: 2 labels"),
        (["a", "b", "b"], "differ from the others"),
        (["a", "b", "c\nd"], "one line of its own"),
        (["a", "b", ""], "one line of its own"),
        ("abc", "list of strings"),
        ([0, 1, 2], "list of strings"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier(labels=labels, num_classes=3)
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        roformer_tf.RoFormerTextClassifier(backbone())
    regression = task("classifier", preprocessor={}, num_classes=1)
    with pytest.raises(ValueError, match="A regression model has no classes"):
        regression.classify(x)
    with pytest.raises(ValueError, match="`top_k` must be a positive integer"):
        model.classify(x, top_k=0)


@pytest.mark.eager
def test_names_for_a_loss_of_one_hot_labels(rng):
    x, y = texts(rng, 4), [0, 1, 2, 0]
    model = classifier()
    smoothed = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile("sgd", smoothed)
    expected = model.evaluate(x, np.eye(3)[y], verbose=0)
    assert model.evaluate(x, [NAMES[i] for i in y], verbose=0) == expected


@pytest.mark.eager
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_weights_of_classes(rng, activation):
    """Names and numbers weigh the same, and a class without a weight counts as 1."""
    names = NAMES if activation is None else ["no", "yes"]
    x, y = texts(rng, 4), [0, 1, len(names) - 1, 0]
    weights = np.array([1.0, 5.0, 1.0])[y]
    options = {"num_classes": len(names) if activation is None else 1, "labels": names}
    losses = []
    for class_weight in ({1: 5}, {names[1]: np.float32(5), 0: 1.0}, None):
        model = classifier(activation=activation, dropout=0.0, **options)
        model.compile(keras.optimizers.SGD(0.1))
        given = {"sample_weight": weights} if class_weight is None else {}
        history = model.fit(x, y, class_weight=class_weight, shuffle=False, verbose=0, **given)
        losses.append(history.history["loss"] + [model.evaluate(x, y, verbose=0)[0]])
    model = classifier(activation=activation, dropout=0.0, **options)
    model.compile(keras.optimizers.SGD(0.1))
    loss, _ = model.train_on_batch(x, y, class_weight={names[1]: 5})
    losses.append([float(loss), model.evaluate(x, y, verbose=0)[0]])
    np.testing.assert_allclose(losses[:-1], losses[1:], rtol=1e-6)
    for wrong, message in (
        ({"great": 2.0}, f"names among .*{names[0]}.*Received: 'great'"),
        ({len(names): 2.0}, f"numbers from 0 to {len(names) - 1}"),
        ({0: "2"}, "a number for each class"),
        ([1.0, 2.0], "must be a dictionary"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(x, y, class_weight=wrong, verbose=0)
    several = task("classifier", preprocessor={}, activation="sigmoid")
    with pytest.raises(ValueError, match="classes that exclude each other"):
        several.fit(x, np.eye(several.num_classes)[[0, 1, 1, 0]], class_weight={0: 2.0}, verbose=0)


@pytest.mark.eager
def test_metrics_of_one_probability(rng):
    """`F1Score` takes labels `(batch, 1)` alone; flat ones are as good."""
    x, y = texts(rng, 6), np.array([0, 1, 1, 0, 1, 1])
    model = task("classifier", preprocessor={}, num_classes=1, activation="sigmoid")
    model.compile("sgd", metrics=[keras.metrics.F1Score(threshold=0.5)])
    for labels in (y, y[:, None], y.tolist()):
        model.fit(x, labels, validation_split=0.5, verbose=0)
    found = model.predict(x, verbose=0)[:, 0] > 0.5
    expected = 2 * (found & (y == 1)).sum() / (found.sum() + y.sum())
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0)[1], [expected], rtol=1e-6)
    np.testing.assert_allclose(model.test_on_batch(x, y)[1], [expected], rtol=1e-6)


def test_the_loss_of_names_is_compiled_like_that_of_numbers(rng):
    """A second `fit` with numbers goes on after one with names."""
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer(), sequence_length=16)
    model = roformer_tf.RoFormerTextClassifier(
        backbone(num_layers=1), labels=NAMES, preprocessor=preprocessor
    )
    x = texts(rng, 4)
    model.fit(x, ["bad", "fair", "good", "bad"], verbose=0)
    model.fit(x, [0, 1, 2, 0], verbose=0)
    assert isinstance(model.loss, keras.losses.SparseCategoricalCrossentropy)


@pytest.mark.slow
def test_several_labels_for_each_text(rng, tmp_path):
    """Lists of names train as the matrix of 0 and 1 does, with binary cross entropy."""
    x = texts(rng, 6)
    names = [["good", "bad"], [], ["fair"], "good", ("bad",), {"good"}]
    matrix = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]], "float32")
    results = []
    for y in (names, matrix):
        keras.utils.set_random_seed(1)
        model = classifier(activation="sigmoid")
        # eagerly: tracing takes longer than a few steps
        model.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
        model.fit(x, y, batch_size=3, shuffle=False, validation_data=(x, y), verbose=0)
        results.append((model.get_weights(), model.evaluate(x, y, verbose=0)))
    assert_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    p = np.clip(model.predict(x, verbose=0).astype("float64"), 1e-7, 1 - 1e-7)
    expected = -(matrix * np.log(p) + (1 - matrix) * np.log(1 - p)).mean()
    np.testing.assert_allclose(results[0][1][0], expected, rtol=1e-5)
    data = tf.data.Dataset.from_tensor_slices((x, ["bad"] * 6)).batch(3)
    loss = -(np.log(p[:, 0]) + np.log(1 - p[:, 1:]).sum(1)).mean() / 3
    np.testing.assert_allclose(model.evaluate(data, verbose=0)[0], loss, rtol=1e-5)
    column = np.empty(len(names), object)  # as a column of pandas
    column[:] = names
    expected = model.evaluate(x, matrix, verbose=0)
    for given in ((x, column), (((x, names) for _ in "1"),)):
        found = model.evaluate(*given, steps=1, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(model.test_on_batch(x, names), expected, rtol=1e-6)
    losses = []
    for y in (names, matrix):
        model.set_weights(results[0][0])
        model.reset_metrics()
        losses.append(model.train_on_batch(x, y)[0])
    np.testing.assert_array_equal(*losses)
    with pytest.raises(ValueError, match="or 0 and 1 for each of them. Received: 'great'"):
        model.fit(x[:1], [["great"]], verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    loaded.fit(x, names, verbose=0)
    assert {name for name, _ in loaded.classify(x[0])} == {"bad", "fair", "good"}
