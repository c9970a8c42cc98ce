"""Default losses, errors of wrong labels, and scores of texts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from tests.layers.harness import assert_equal, numpy
from tests.models.builders import (
    backbone,
    data,
    expected_outputs,
    inputs,
    randomized,
    task,
    texts,
    tokenizer,
)
from tests.oracles import numpy_roformer as oracle
from tests.oracles.run_original import small_config


def test_original_weights(original, tmp_path, rng):
    """An original checkpoint and a dense layer on bert4keras' `[CLS]` give the logits."""
    original.make_checkpoint(tmp_path, small_config(), seed=2018)
    model = roformer_tf.RoFormerTextClassifier.from_preset(tmp_path, num_classes=3)
    randomized(model.logits_dense)
    ids = rng.integers(5, 200, (4, 9)).astype("int32")
    segments = np.broadcast_to(np.arange(9) > 4, ids.shape).astype("int32")
    found = model.predict({"token_ids": ids, "segment_ids": segments}, verbose=0)
    (hidden,) = original.forward(tmp_path, {"token_ids": ids, "segment_ids": segments})
    kernel, bias = map(np.float64, model.logits_dense.get_weights())
    np.testing.assert_allclose(found, hidden[:, 0] @ kernel + bias, atol=2e-5)


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_default_loss_of_classes(activation, rng):
    model = task("classifier", activation=activation)
    x, y, _ = data("classifier", rng)
    logits = expected_outputs(model, x)
    probabilities = oracle.softmax(logits)
    outputs = model.predict(x, verbose=0)
    np.testing.assert_allclose(outputs, probabilities if activation else logits, atol=1e-5)
    result = model.evaluate(x, y, verbose=0, return_dict=True)
    assert abs(result["loss"] + np.log(probabilities[np.arange(8), y]).mean()) < 1e-5
    accuracy = result["sparse_categorical_accuracy"]
    assert abs(accuracy - (logits.argmax(-1) == y).mean()) < 1e-6


def test_default_loss_of_a_probability(rng):
    model = task("classifier", num_classes=1, activation="sigmoid")
    x, y, _ = data("classifier", rng)
    y = y % 2
    p = 1 / (1 + np.exp(-expected_outputs(model, x)[:, 0]))
    np.testing.assert_allclose(model.predict(x, verbose=0)[:, 0], p, atol=1e-6)
    result = model.evaluate(x, y, verbose=0, return_dict=True)
    assert abs(result["loss"] + np.log(np.where(y == 1, p, 1 - p)).mean()) < 1e-5
    assert abs(result["binary_accuracy"] - ((p > 0.5) == y).mean()) < 1e-6


def test_default_loss_of_a_regression(rng):
    model = task("classifier", num_classes=1)
    x, _, _ = data("classifier", rng)
    y = rng.normal(size=8).astype("float32")
    output = expected_outputs(model, x)[:, 0]
    for each in (model, type(model).from_config(model.get_config())):
        each.set_weights(model.get_weights())
        result = each.evaluate(x, y, verbose=0, return_dict=True)
        assert abs(result["loss"] - ((output - y) ** 2).mean()) < 1e-5
        assert abs(result["mean_absolute_error"] - np.abs(output - y).mean()) < 1e-5
    history = model.fit(x, y, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_logits_are_float32_under_every_policy(rng):
    x, y, _ = data("classifier", rng)
    for dtype in ("mixed_float16", "mixed_bfloat16"):
        model = task("classifier", dtype=dtype)
        outputs = model(x)
        assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
        rounding = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}[dtype]
        # one block of ten roundings, and a sum of 16 products
        assert np.abs(numpy(outputs) - expected_outputs(model, x)).max() < 40 * rounding
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()


def test_dropout_acts_in_training_only(rng):
    model = task("classifier", dropout=0.5)
    x, _, _ = data("classifier", rng)
    np.testing.assert_array_equal(numpy(model(x)), numpy(model(x, training=False)))
    assert np.abs(numpy(model(x, training=True)) - numpy(model(x))).max() > 0.01


@pytest.mark.parametrize("bad", [3, -1])
def test_labels_out_of_range(bad, rng):
    model = task("classifier")
    x, y, _ = data("classifier", rng)
    y[2] = bad
    message = r"Labels must be integers from 0 to `num_classes` - 1 = 2\. Received: labels from "
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message):
            call(x, y, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    message = "label of the dataset is out of range: labels must be integers from 0 to the number"
    before = model.get_weights()
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message) as error:
            call(dataset, verbose=0)
        assert str(bad) in str(error.value)
    assert_equal(model.get_weights(), before)


@pytest.mark.parametrize("raw", [False, True])
def test_empty_data(raw, rng):
    model = task("classifier", preprocessor={} if raw else None)
    x, y, _ = data("classifier", rng)
    empty = [] if raw else {k: v[:0] for k, v in x.items()}
    message = "The dataset is empty: expected at least one example. Received: 0 examples"
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message):
            call(empty, y[:0], verbose=0)
    with pytest.raises(ValueError, match=message):
        model.predict(empty, verbose=0)
    full = tf.data.Dataset.from_tensor_slices((texts(rng, 8) if raw else x, y)).batch(4)
    with pytest.raises(ValueError, match=message):
        model.fit(full.take(0), verbose=0)
    if raw:
        with pytest.raises(ValueError, match=message):
            model.fit(([], []), y[:0], verbose=0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_classes": 0}, "`num_classes` must be a positive integer. Received: num_classes=0"),
        ({"num_classes": 2.0}, "`num_classes` must be a positive integer"),
        ({"pooling": "max"}, "`pooling` must be one of .* Received: pooling='max'"),
        ({"pooling": "pooler"}, "`pooling='pooler'` needs a backbone with a pooler"),
        ({"activation": "no_such"}, "no_such"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        roformer_tf.RoFormerTextClassifier(backbone(num_layers=1), **{"num_classes": 2, **options})


def test_causal_lm_needs_a_causal_or_unilm_backbone():
    with pytest.raises(ValueError, match="needs a backbone with `masking='causal'` or .*'unilm'"):
        roformer_tf.RoFormerCausalLM(backbone(num_layers=1))


def log_probabilities(model, x, targets):
    """Returns float64 log probabilities (batch, length) of the next tokens."""
    probabilities = oracle.softmax(expected_outputs(model, x))
    return np.log(np.take_along_axis(probabilities, targets[..., None], -1)[..., 0])


def test_score_of_ids(rng):
    model = task("causal_lm")
    x = inputs(rng, batch=5)
    scores = model.score(x, batch_size=2)
    head = {k: v[:, :-1] for k, v in x.items()}
    mask = x["padding_mask"][:, 1:]
    expected = (log_probabilities(model, head, x["token_ids"][:, 1:]) * mask).sum(1)
    np.testing.assert_allclose(scores["log_likelihood"], expected, rtol=1e-5)
    np.testing.assert_array_equal(scores["num_tokens"], mask.sum(1))
    np.testing.assert_allclose(scores["perplexity"], np.exp(-expected / mask.sum(1)), rtol=1e-5)


@pytest.mark.parametrize("name", ["causal_lm", "causal_lm_sim"])
def test_score_of_strings(name, rng):
    model = task(name, preprocessor={"sequence_length": 40})
    first, second = texts(rng, 5), texts(rng, 5)
    pairs = name == "causal_lm_sim"
    scores = model.score((first, second) if pairs else first, batch_size=2)
    tokens = tokenizer()
    for i in range(5):
        a, b = tokens(first[i]), tokens(second[i])
        ids = [2, *numpy(a), 3] + ([*numpy(b), 3] if pairs else [])
        segments = [0] * (len(a) + 2) + ([1] * (len(b) + 1) if pairs else [])
        x = {
            "token_ids": np.array([ids[:-1]]),
            "segment_ids": np.array([segments[:-1]]),
            "padding_mask": np.ones((1, len(ids) - 1), int),
        }
        chosen = log_probabilities(model, x, np.array([ids[1:]]))[0]
        counted = np.array(segments[1:]) == (1 if pairs else 0)
        assert scores["num_tokens"][i] == counted.sum()
        assert abs(scores["log_likelihood"][i] - (chosen * counted).sum()) < 1e-4
    with pytest.raises(ValueError, match="The dataset is empty"):
        model.score(([], []) if pairs else [])
