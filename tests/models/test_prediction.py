"""Texts of mixed length: outputs in the order given, no new traces, bounded memory, any grouping."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.function.polymorphism import type_dispatch
from tensorflow.python.eager import context

import roformer_tf
from roformer_tf.models import fill_mask, length_batches, roformer_causal_lm
from tests.models.builders import backbone, task, texts, tokenizer

# Two batches of one text differ in the order of float32 additions in a matrix product.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def model_of(kind):
    return task(kind, preprocessor={"sequence_length": 512})


@pytest.fixture(scope="module")
def classifier():
    return model_of("classifier")


def one_by_one(model, x):
    if isinstance(x, tuple):
        parts = [([first], [second]) for first, second in zip(*x, strict=True)]
    else:
        parts = [[text] for text in x]
    return np.concatenate([model.predict(part, verbose=0) for part in parts])


def shape_of_batch(model, inputs):
    return tuple(inputs["token_ids"].shape)


class Widths(keras.callbacks.Callback):
    """Notes the number of rows of each batch."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def on_predict_batch_end(self, batch, logs=None):
        self.rows.append(len(logs["outputs"]))


def test_outputs_are_in_the_order_given(classifier, rng):
    x = texts(rng, 21, 1, 40)
    expected = one_by_one(classifier, x)
    for data, options in {
        "list": (x, {}),
        "array": (np.array(x), {"batch_size": 4}),
        "tokens": (x, {"max_tokens_per_batch": 50}),
        "both": (x, {"max_tokens_per_batch": 90, "batch_size": 3}),
        "callbacks": (x, {"batch_size": 4, "callbacks": [Widths()]}),
        "dataset": (tf.data.Dataset.from_tensor_slices(x).batch(4), {}),
        "labels": (tf.data.Dataset.from_tensor_slices((x, [0] * 21)).batch(4), {}),
        "generator": (((part,) for part in (x[:5], x[5:6], x[6:])), {}),
    }.values():
        found = classifier.predict(data, verbose=0, **options)
        np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(classifier.predict(x, 4, 0, steps=3), expected[:12], **CLOSE)
    np.testing.assert_allclose(classifier.predict(x, 4, steps=1, verbose=0), expected[:4], **CLOSE)


def test_pairs_and_sim_classifiers(rng):
    x = texts(rng, 9, 1, 20), texts(rng, 9, 1, 20)
    preprocessor = roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer())
    sim = roformer_tf.RoFormerSimClassifier(backbone("sim", num_layers=1), preprocessor)
    for model in (model_of("classifier"), sim):
        expected = one_by_one(model, x)
        found = model.predict(x, batch_size=2, verbose=0)
        np.testing.assert_allclose(found, expected, **CLOSE)
        found = model.predict(x, verbose=0, max_tokens_per_batch=70)
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_outputs_of_other_widths_are_ragged(rng):
    model = model_of("causal_lm")
    x = [*texts(rng, 2, 3, 3), *texts(rng, 2, 7, 7)]
    found = model.predict(x, batch_size=2, verbose=0)
    assert isinstance(found, tf.RaggedTensor)
    for row, text in zip(found, x, strict=True):
        expected = model.predict([text], verbose=0)[0]
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-4, atol=1e-5)


def test_a_pair_of_sim_is_two_sequences(rng):
    preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer(), sequence_length=8)
    model = roformer_tf.RoFormerSim(backbone("sim", num_layers=1), preprocessor)
    pairs = (texts(rng, 3), texts(rng, 3))
    assert {len(x) for x in model.predict(pairs, verbose=0).values()} == {6}


@pytest.mark.parametrize("kind", ["causal_lm", "causal_lm_sim"])
def test_generate_in_batches(kind, rng):
    """The texts of each prompt alone, in the order given."""
    model = model_of(kind)
    model.compile(sampler="greedy")
    x = texts(rng, 7, 1, 20)
    expected = [model.generate(text, max_length=30) for text in x]
    assert model.generate(x, max_length=30, batch_size=3) == expected
    if kind == "causal_lm_sim":
        expected = model.generate((x, x), max_length=50)
        assert model.generate((x, x), max_length=50, batch_size=3) == expected
    assert model.generate(x[0], max_length=30, batch_size=3) == model.generate(x[0], max_length=30)


def test_masks_are_filled_in_the_order_given(rng):
    model = model_of("masked_lm")
    x = [text + "[MASK]" * (i % 3) for i, text in enumerate(texts(rng, 9, 1, 30))]
    for text, found in zip(x, fill_mask(model, x, batch_size=4), strict=True):
        for mask, alone in zip(found, fill_mask(model, text), strict=True):
            assert [token for token, _ in mask] == [token for token, _ in alone]
            np.testing.assert_allclose([p for _, p in mask], [p for _, p in alone], rtol=1e-5)


def test_callbacks_see_the_batches_as_given(classifier, rng):
    widths = Widths()
    classifier.predict(texts(rng, 7), batch_size=3, verbose=0, callbacks=[widths])
    assert widths.rows == [3, 3, 1]

    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = True

    found = classifier.predict(texts(rng, 7), batch_size=3, verbose=0, callbacks=[Stop()])
    assert len(found) == 3


def test_nothing_is_traced_again(rng, calls_of):
    """200 texts of 1 to 500 characters, after one call of each method."""
    model = model_of("classifier")
    eager = calls_of(type(model), "compute_outputs", lambda *args: tf.executing_eagerly())
    graph = model.preprocessor.tokenizer.graph.__call__
    model.predict(texts(rng, 1), verbose=0)
    model.classify(texts(rng, 2))
    assert eager.count(False) == 1
    before = graph.experimental_get_tracing_count()
    for text in texts(rng, 200, 1, 500):
        model.predict([text], verbose=0)
    model.predict_on_batch(texts(rng, 3, 1, 500))
    model.predict(texts(rng, 40, 1, 100), verbose=0)
    assert eager.count(False) == 1
    assert graph.experimental_get_tracing_count() == before


@pytest.mark.parametrize("kind", ["masked_lm", "causal_lm", "sim"])
def test_warmup_builds_all(kind, rng, calls_of):
    """After it `fill_mask`, `generate` and `embed` trace nothing."""
    if kind == "sim":
        preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer(), sequence_length=512)
        model = roformer_tf.RoFormerSim(backbone("sim", num_layers=1), preprocessor)
    else:
        model = model_of(kind)
    if kind != "masked_lm":
        model.compile(sampler="greedy")
    model.warmup()
    names = "compute_outputs", "call_with_cache"
    traced = [calls_of(roformer_tf.RoFormerBackbone, name) for name in names]
    for text in texts(rng, 10, 1, 40):
        if kind == "masked_lm":
            fill_mask(model, ["[MASK]" + text, text + "[MASK]" + text])
            continue
        model.generate([text, text], max_length=len(text) + 6)
        if kind == "sim":
            model.embed([text])
    assert not any(traced)


def test_no_dataset_is_made_for_texts_in_memory(classifier, rng, monkeypatch):
    """A new `tf.data` iterator takes half a second."""
    x, y = texts(rng, 40), rng.integers(0, 3, size=40)

    def fails(*_):
        raise AssertionError("a dataset was iterated")

    monkeypatch.setattr(tf.data.Dataset, "__iter__", fails)
    classifier.predict(x, verbose=0)
    classifier.classify(x)
    classifier.evaluate(x[:9], y[:9], verbose=0)


@pytest.mark.parametrize("has_condition", [False, True])
def test_graphs_without_conditions_run_in_one_thread(has_condition, monkeypatch, calls_of):
    """For others that executor may wait for ever, as it does here, where there is one thread."""
    model = task("classifier", preprocessor={"sequence_length": 512})
    call = model.call

    def with_condition(*args, **kwargs):
        outputs = call(*args, **kwargs)
        return tf.cond(tf.size(outputs) > 0, lambda: outputs, lambda: outputs + 1)

    x = ["天天", "天气"]
    expected = model.predict(x, verbose=0)
    executors = calls_of(context, "function_executor_type", lambda name: name)
    if has_condition:
        monkeypatch.setattr(model, "call", with_condition)
        model.make_predict_function(force=True)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert executors == ([] if has_condition else ["SINGLE_THREADED_EXECUTOR"])


def test_a_dataset_is_read_window_by_window(classifier, rng, monkeypatch):
    """At most 32 batches are read before the first one runs."""
    read, seen = [], []

    def batches():
        for number in range(70):
            read.append(number)
            yield texts(rng, 2, 1, 30)

    function = classifier.make_predict_function()
    monkeypatch.setattr(
        classifier, "predict_function", lambda data: seen.append(len(read)) or function(data)
    )
    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([2], tf.string))
    assert len(classifier.predict(data, verbose=0)) == 140
    # `tf.data` itself reads some elements ahead.
    assert seen[0] < 50 and seen[-1] == 70 and len(seen) == 70


@pytest.mark.parametrize("name", ["evaluate one batch", "evaluate"])
def test_evaluate_groups_without_changing_the_result(name, rng):
    model = model_of("classifier")
    model.compile(loss="auto", run_eagerly=True)
    x, y = texts(rng, 23, 1, 30), rng.integers(0, 3, size=23)
    weights = rng.uniform(size=23)
    rows = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(23)
    expected = model.evaluate(rows, verbose=0)
    options = {} if name != "evaluate" else {"batch_size": 23, "callbacks": []}
    found = model.evaluate(x, y, weights, verbose=0, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = model.evaluate(x, y, weights, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], expected[0], rtol=1e-5)
    if name == "evaluate":
        unweighted = model.evaluate(x, y, batch_size=23, verbose=0)
        for options in ({"batch_size": 4}, {"max_tokens_per_batch": 70}):
            found = model.evaluate(x, y, verbose=0, **options)
            np.testing.assert_allclose(found, unweighted, rtol=1e-5)


def epochs_of(model, x, y, epochs, **options):
    """Returns the batches of each epoch of a `fit`: arrays of token ids and labels."""
    batches = [[] for _ in range(epochs)]
    model.compile(keras.optimizers.SGD(0.0), loss="auto", run_eagerly=True)

    class Epochs(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

    callback = Epochs()
    original = type(model).train_step

    def train_step(data):
        is_first = not any(batches)
        batches[callback.epoch].append((data[0]["token_ids"].numpy(), data[1].numpy()))
        # One step builds the metrics; the others are not looked at.
        return original(model, data) if is_first else {"loss": tf.constant(0.0)}

    model.train_step = train_step
    model.fit(x, y, epochs=epochs, verbose=0, callbacks=[callback], **options)
    return batches


def test_fit_groups_by_length(rng):
    x = texts(rng, 60, 1, 60)
    y = np.arange(60) % 3
    runs = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        options = {"group_by_length": True, "batch_size": 8}
        runs.append(epochs_of(model_of("classifier"), x, y, 2, **options))
    preprocessor = model_of("classifier").preprocessor
    all_rows = sorted(row[row > 0].tolist() for row in preprocessor(x)["token_ids"].numpy())
    for epoch in runs[0]:
        rows = [row[row > 0] for ids, _ in epoch for row in ids]
        assert sorted(row.tolist() for row in rows) == all_rows
        for ids, labels in epoch:
            # Of one bucket: no text is shorter than the width below.
            width = length_batches.ladder_width(ids.shape[1])
            shortest = (ids > 0).sum(1).min()
            assert length_batches.ladder_width(shortest) == width and len(labels) <= 8

    def flat(run):
        return [ids.tolist() for epoch in run for ids, _ in epoch]

    assert flat(runs[0]) == flat(runs[1]) != flat(runs[2])
    assert flat(runs[0][:1]) != flat(runs[0][1:])  # each epoch draws again


def test_fit_bounds_tokens_and_groups_datasets(rng):
    x = texts(rng, 60, 1, 60)
    y = np.arange(60) % 3
    options = {"group_by_length": True, "max_tokens_per_batch": 128}
    (epoch,) = epochs_of(model_of("classifier"), x, y, 1, **options)
    assert all(ids.size <= 128 for ids, _ in epoch) and sum(len(y) for _, y in epoch) == 60
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    (epoch,) = epochs_of(model_of("classifier"), data, None, 1, **options)
    assert all(ids.size <= 128 for ids, _ in epoch) and sum(len(y) for _, y in epoch) == 60
    labels = np.concatenate([y for _, y in epoch])
    np.testing.assert_array_equal(np.bincount(labels), [20, 20, 20])


def test_an_empty_batch_of_a_dataset(classifier, rng):
    x = texts(rng, 3)
    spec = tf.TensorSpec([None], tf.string)
    for parts in ((x[:2], [], x[2:]), ([], x), ([],)):
        batches = functools.partial(iter, parts)
        dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
        found = classifier.predict(dataset, verbose=0)
        expected = classifier.predict(x, verbose=0) if len(parts) > 1 else np.zeros((0, 3))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_wrong_arguments(classifier, rng):
    x = texts(rng, 3)
    data = tf.data.Dataset.from_tensor_slices(x).batch(2)
    for call, message in (
        (lambda: classifier.predict(x, max_tokens_per_batch=0), "`max_tokens_per_batch` must be"),
        (lambda: classifier.predict(x, batch_size=0), "`batch_size` must be a positive"),
        (lambda: classifier.predict(x, steps=-1), "`steps` must be a positive"),
        (lambda: classifier.predict(data, batch_size=4), "`batch_size` is its own"),
        (lambda: classifier.fit(x, [0, 1, 2], max_tokens_per_batch=9), "`group_by_length=True`"),
        (
            lambda: classifier.fit(classifier.preprocessor(x), [0, 1, 2], group_by_length=True),
            "need texts",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_xla_sees_few_shapes(rng, monkeypatch, calls_of):
    """Texts are padded to a ladder of widths, and batches to powers of two."""
    model = model_of("classifier")
    x = texts(rng, 30, 1, 60)
    expected = one_by_one(model, x)
    monkeypatch.setattr("roformer_tf.models.prediction.has_program_for_each_shape", lambda _: True)
    shapes = calls_of(keras.Model, "predict_on_batch", shape_of_batch)
    found = [model.predict(x[a:b], verbose=0) for a, b in ((0, 3), (3, 10), (10, 30))]
    np.testing.assert_allclose(np.concatenate(found), expected, **CLOSE)
    assert shapes
    for rows, width in shapes:
        assert rows & (rows - 1) == 0 and width == length_batches.ladder_width(width)


def test_few_texts_of_mixed_length_are_not_padded_to_the_longest(classifier, rng, calls_of):
    x = [*texts(rng, 3, 1, 10), *texts(rng, 1, 500, 500), *texts(rng, 3, 1, 10)]
    expected = np.concatenate([classifier.predict([text], verbose=0) for text in x])
    shapes = calls_of(keras.Model, "predict_on_batch", shape_of_batch)
    np.testing.assert_allclose(classifier.predict(x, verbose=0), expected, **CLOSE)
    (longest, _), (others, width) = shapes
    assert (longest, others) == (1, 6) and width < 20


def test_generation_makes_as_few_batches_as_may_be():
    lengths = [500, 1, 400, 2, 3, 1]
    cost = roformer_causal_lm.COST_OF_GENERATION
    batches = length_batches.length_batches(lengths, 4, cost=cost)
    assert [len(batch) for batch in batches] == [2, 4]


def test_no_shape_is_looked_up(classifier, rng, calls_of):
    """TensorFlow compares the shape of a call with all before it, which takes longer and longer."""
    classifier.predict(texts(rng, 1), verbose=0)
    classifier.predict(texts(rng, 1), verbose=0)  # the first after a trace is looked up
    classifier.predict({"token_ids": np.ones((1, 1), "int32")}, verbose=0)
    seen = calls_of(type_dispatch.TypeDispatchTable, "_cache_dispatch")
    for length in range(1, 60):
        inputs = {"token_ids": np.ones((1, length), "int32")}
        classifier.predict(inputs, verbose=0)
        classifier.predict(texts(rng, 1, length, length), verbose=0)
    assert not seen


def test_length_batches(rng):
    lengths = rng.integers(1, 100, size=50)
    for keep_order in (False, True):
        batches = length_batches.length_batches(lengths, 7, 200, keep_order)
        rows = np.concatenate(batches)
        assert sorted(rows) == list(range(50)) and (not keep_order or (rows == range(50)).all())
        assert all(len(b) * lengths[b].max() <= 200 and len(b) <= 7 for b in batches)
    assert [len(b) for b in length_batches.length_batches([900, 5], max_tokens=100)] == [1, 1]
