"""Choices: packing, truncation, mixed numbers of choices, gaps, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.models.roformer_multiple_choice_preprocessor import kept_lengths
from tests.models.answering import (
    backbone,
    check_files,
    check_forms_of_data,
    check_lora,
    check_warmup,
    random_text,
    tokenizer,
)
from tests.models.builders import V2, randomized, shared_preprocessor
from tests.oracles.run_original import small_config


def chooser(sequence_length=48, kind=None, pooling="cls", **options):
    preprocessor = shared_preprocessor(
        roformer_tf.RoFormerMultipleChoicePreprocessor,
        tokenizer(),
        sequence_length=sequence_length,
        **options,
    )
    return randomized(
        roformer_tf.RoFormerMultipleChoice(backbone(kind), preprocessor, pooling=pooling)
    )


def questions(rng, count, least=2, most=7):
    """Documents, questions and 2 to 7 choices."""
    return {
        "context": [random_text(rng, int(n)) for n in rng.integers(1, 60, count)],
        "question": [random_text(rng, int(n)) for n in rng.integers(1, 9, count)],
        "choices": [
            [random_text(rng, int(n)) + "天" for n in rng.integers(1, 9, size)]
            for size in rng.integers(least, most + 1, count)
        ],
    }


def truncated(lengths, room):
    """`truncate_sequences` of bert4keras: the longest sequence loses one, the first of equals."""
    lengths = list(lengths)
    while sum(lengths) > room:
        lengths[int(np.argmax(lengths))] -= 1
    return lengths


def test_lengths_are_bert4keras(rng):
    for count in (2, 3):
        lengths = rng.integers(0, 30, (count, 400)).astype("int32")
        room = int(rng.integers(3, 50))
        found = np.stack([x.numpy() for x in kept_lengths([tf.constant(x) for x in lengths], room)])
        assert found.T.tolist() == [truncated(row, room) for row in lengths.T]


def test_warmup_builds_the_graph(rng, calls_of):
    check_warmup(chooser(), questions(rng, 5), calls_of)


@pytest.mark.eager
def test_packing():
    """`[CLS] context [SEP] question [SEP] choice [SEP]`, each cut at its end."""
    task = chooser(sequence_length=16)
    ids = task.preprocessor.tokenizer
    context, question, choices = "天地玄黄宇宙洪荒日月", "盈昃", ["辰宿", "列张寒"]
    x = task.preprocessor({"context": [context], "question": [question], "choices": [choices]})
    for row, choice in enumerate(choices):
        room = 16 - 4 - len(question) - len(choice)
        want = [2, *ids(context)[:room], 3, *ids(question), 3, *ids(choice), 3]
        assert np.asarray(x["token_ids"])[0, row].tolist() == want
        segments = [0] * (len(want) - len(choice) - 1) + [1] * (len(choice) + 1)
        assert np.asarray(x["segment_ids"])[0, row].tolist() == segments
    flat = chooser(pair_segments=False).preprocessor({"question": ["天"], "choices": [["地"]]})
    assert not np.asarray(flat["segment_ids"]).any()
    assert np.asarray(flat["token_ids"]).tolist() == [[[2, *ids("天"), 3, *ids("地"), 3]]]


@pytest.mark.eager
def test_gaps():
    """`[CLS] left [SEP] choice [SEP] right [SEP]`: the text nearest to the gap is kept."""
    task = chooser(sequence_length=12)
    ids = task.preprocessor.tokenizer
    left, right = "天地玄黄宇宙洪荒", "日月盈"
    x = {"left": [left, ""], "right": [right, right], "choices": [["辰宿", "列"], ["张"]]}
    rows = np.asarray(task.preprocessor(x)["token_ids"])
    assert rows[0, 0].tolist() == [2, *ids(left[-3:]), 3, *ids("辰宿"), 3, *ids(right), 3]
    assert rows[0, 1].tolist() == [2, *ids(left[-4:]), 3, *ids("列"), 3, *ids(right), 3]
    assert rows[1, 0].tolist() == [2, 3, *ids("张"), 3, *ids(right), 3] + 4 * [0]
    assert not rows[1, 1].any()
    assert len(task.predict(x, verbose=0)[1]) == 1


@pytest.mark.parametrize(
    "kind",
    [V2, *(pytest.param(kind, marks=pytest.mark.slow) for kind in ({}, {"num_segments": 0}))],
)
def test_number_of_choices_changes_nothing(rng, kind):
    """A question with 2 choices beside one with 7 has the answer that it has alone."""
    task = chooser(kind=kind)
    x = questions(rng, 8)
    together = task.predict(x, batch_size=4, verbose=0)
    for i, row in enumerate(together):
        alone = {name: column[i : i + 1] for name, column in x.items()}
        (expected,) = task.predict(alone, verbose=0)
        assert [choice[:2] for choice in row] == [choice[:2] for choice in expected]
        probabilities = [choice[2] for choice in row]
        np.testing.assert_allclose(probabilities, [c[2] for c in expected], atol=1e-5)
        assert abs(sum(probabilities) - 1) < 1e-5 and probabilities == sorted(probabilities)[::-1]
        assert [x["choices"][i][index] for index, *_ in row] == [choice for _, choice, _ in row]
    ragged = {**x, "choices": tf.ragged.constant(x["choices"])}
    assert task.predict(ragged, batch_size=4, verbose=0) == together
    inputs = task.preprocessor(ragged)
    logits = task.predict(inputs, verbose=0)
    best = [row[0][0] for row in together]
    assert logits.argmax(1).tolist() == best
    # the same as the backbone's vectors of `[CLS]`, one sequence at a time
    flat = {name: value[0] for name, value in inputs.items() if name in task.backbone.input}
    count = len(x["choices"][0])
    vectors = task.backbone({name: value[:count] for name, value in flat.items()})[:, 0]
    np.testing.assert_allclose(task.logits_dense(vectors)[:, 0], logits[0, :count], atol=1e-5)


def test_original_weights(original, tmp_path, rng):
    """An original checkpoint and a dense layer on bert4keras' `[CLS]` give the scores."""
    original.make_checkpoint(tmp_path, small_config(), seed=2018)
    task = roformer_tf.RoFormerMultipleChoice.from_preset(tmp_path)
    randomized(task.logits_dense)
    ids = rng.integers(5, 200, (2, 3, 9)).astype("int32")
    segments = np.broadcast_to(np.arange(9) > 4, ids.shape).astype("int32")
    found = np.asarray(task({"token_ids": ids, "segment_ids": segments}))
    for i, (tokens, parts) in enumerate(zip(ids, segments)):
        (hidden,) = original.forward(tmp_path, {"token_ids": tokens, "segment_ids": parts})
        kernel, bias = map(np.float64, task.logits_dense.get_weights())
        np.testing.assert_allclose(found[i], hidden[:, 0] @ kernel[:, 0] + bias, atol=2e-5)


@pytest.mark.eager
@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_pooling(rng, pooling):
    """A choice is judged by the mean of its tokens, or by the backbone's pooler."""
    task = chooser(kind={"pooler": "tanh"}, pooling=pooling)
    x = questions(rng, 2, most=3)
    inputs = task.preprocessor(task.text_tensors(x))
    logits = task.predict(inputs, verbose=0)
    for i, choices in enumerate(x["choices"]):
        row = {name: np.asarray(value)[i, : len(choices)] for name, value in inputs.items()}
        outputs = {name: np.float64(value) for name, value in task.backbone(row).items()}
        mask = row["padding_mask"][..., None]
        mean = (outputs["sequence_output"] * mask).sum(1) / mask.sum(1)
        vectors = mean if pooling == "mean" else outputs["pooled_output"]
        kernel, bias = map(np.float64, task.logits_dense.get_weights())
        expected = vectors @ kernel[:, 0] + bias
        np.testing.assert_allclose(logits[i, : len(choices)], expected, rtol=1e-5, atol=1e-5)
    again = type(task).from_config(task.get_config())
    assert again.pooling == pooling
    with pytest.raises(ValueError, match="needs a backbone with a pooler"):
        chooser(pooling="pooler")
    with pytest.raises(ValueError, match="`pooling` must be one of.*'last'"):
        chooser(pooling="last")


def test_learns(rng):
    """The right choice is in the question."""
    task = chooser(kind={"num_layers": 2})
    task.compile(keras.optimizers.Adam(0.01))
    places = ["北京", "雨雪", "阴晴"]
    right = rng.integers(0, 3, 48)
    x = {
        "question": [f"在{places[i]}" for i in right],
        "choices": [places if i % 2 else places + ["天"] for i in range(48)],
    }
    inputs = task.preprocessor(task.text_tensors(x))
    for _ in range(60):
        loss, accuracy = task.train_on_batch(inputs, right)
    assert accuracy > 0.9
    # accuracy is a running mean over the steps; what was learned in the end:
    assert np.mean([row[0][0] for row in task.predict(x, verbose=0)] == right) > 0.95


@pytest.mark.eager
@pytest.mark.slow
def test_every_form_of_data(rng):
    task = chooser()
    x = questions(rng, 6, least=2)
    labels = [int(rng.integers(0, len(row))) for row in x["choices"]]
    _, dataset = check_forms_of_data(task, x, labels)
    task.compile(keras.optimizers.SGD(0.0))
    history = task.fit(x, labels, batch_size=4, group_by_length=True, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    expected = task.predict(x, verbose=0)
    assert task.predict(dataset, verbose=0) == expected
    width = max(map(len, x["choices"]))
    padded = np.array([row + [""] * (width - len(row)) for row in x["choices"]])
    assert task.predict({**x, "choices": padded}, verbose=0) == expected


@pytest.mark.eager
@pytest.mark.slow
def test_files(tmp_path, rng):
    check_files(chooser(), questions(rng, 3), tmp_path)


@pytest.mark.slow
def test_low_precision_and_lora(rng):
    x, labels = questions(rng, 3), [0, 1, 0]
    expected = chooser().evaluate(x, labels, verbose=0, return_dict=True)["loss"]
    half = roformer_tf.RoFormerMultipleChoice(
        backbone(dtype="mixed_bfloat16"), chooser().preprocessor
    )
    half.set_weights(chooser().get_weights())
    found = half.evaluate(x, labels, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(found, expected, rtol=0.1)  # sums whose parts round by 2^-8
    assert half.output.dtype == "float32"
    task = chooser()
    check_lora(task, task.preprocessor(task.text_tensors(x)), np.array(labels))
    assert len(task.predict(x, verbose=0)) == 3


@pytest.mark.eager
def test_weights_of_places():
    """The places of right choices have the weights given, and others 1."""
    task, x = chooser(), {"question": ["谁", "谁"], "choices": [["我", "你"], ["你", "我", "和"]]}
    task.compile(keras.optimizers.SGD(0.0))
    task.output_dropout.rate = 0.0
    weights = {"class_weight": {0: 3.0}}, {"sample_weight": np.array([3.0, 1.0])}
    losses = [task.fit(x, [0, 2], verbose=0, **given).history["loss"] for given in weights]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_errors():
    task, x = chooser(), {"question": ["谁"], "choices": [["我", "你"]]}
    for labels, message in (([2], "for 2 choices"), (["我"], "index of the right choice")):
        with pytest.raises(ValueError, match=message):
            task.evaluate(x, labels, verbose=0)
    matrix = {**x, "choices": np.array([["我", "你", ""]])}
    with pytest.raises(ValueError, match="2 as label 0, for 3 choices, of which it is an empty"):
        task.fit(matrix, np.array([2]), verbose=0)
    assert task.evaluate(matrix, [[1]], verbose=0) == task.evaluate(x, [1], verbose=0)
    with pytest.raises(ValueError, match="`class_weight` must be a dictionary"):
        task.fit(x, [1], class_weight=[1.0], verbose=0)
    for choices, message in (([[]], "none of them empty"), ([["我", ""]], "none of them empty")):
        with pytest.raises(ValueError, match=message):
            task.predict({**x, "choices": choices}, verbose=0)
    with pytest.raises(TypeError, match="Choices must be strings. Received: 3"):
        task.predict({**x, "choices": [["我", 3]]}, verbose=0)
    with pytest.raises(ValueError, match="Expected a dictionary of `question`"):
        task.predict({"text": ["谁"], "choices": [["我"]]}, verbose=0)
    with pytest.raises(ValueError, match="at least 8"):
        chooser(sequence_length=7)
