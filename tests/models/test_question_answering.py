"""Reading: offsets, chunks, heads, unanswerable questions, the best answers, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.models.answer_spans import answers_of_scores
from roformer_tf.models.roformer_question_answering import HEADS
from tests.models.answering import (
    backbone,
    check_files,
    check_forms_of_data,
    check_lora,
    check_warmup,
    random_text,
    tokenizer,
)
from tests.models.builders import randomized, shared_preprocessor
from tests.oracles.run_original import small_config

EACH_HEAD = ["joint", pytest.param("separate", marks=pytest.mark.slow)]


def reader(head="joint", sequence_length=64, stride=8, num_layers=1, **options):
    names = ("max_question_length", "pair_segments")
    settings = {name: options.pop(name) for name in names if name in options}
    preprocessor = shared_preprocessor(
        roformer_tf.RoFormerQuestionAnsweringPreprocessor,
        tokenizer(),
        sequence_length=sequence_length,
        stride=stride,
        **settings,
    )
    return randomized(
        roformer_tf.RoFormerQuestionAnswering(
            backbone(num_layers=num_layers), preprocessor, head=head, head_dim=8, **options
        )
    )


def columns(questions, contexts):
    return {"question": questions, "context": contexts}


def tensors(questions, contexts):
    return tf.constant(questions), tf.constant(contexts)


def outputs_of(task, x, y):
    """Returns outputs of a perfect model for model inputs and spans of tokens."""
    rows, width = x["token_ids"].shape
    if task.head == "joint":
        outputs = np.zeros((rows, width, width), "float32")
        outputs[range(rows), y[:, 0], y[:, 1]] = 30
        return outputs
    outputs = np.zeros((rows, width, 2), "float32")
    outputs[range(rows), y[:, 0], 0] = outputs[range(rows), y[:, 1], 1] = 30
    return outputs


def test_warmup_builds_the_graph(rng, calls_of):
    data = columns([random_text(rng, 5)] * 3, [random_text(rng, n) for n in (3, 40, 200)])
    check_warmup(reader(), data, calls_of)


@pytest.mark.eager
@pytest.mark.parametrize("head", HEADS)
def test_answers_come_back(rng, head):
    """Characters -> tokens of chunks -> characters is the identity, however long the contexts."""
    task = reader(head, sequence_length=40, stride=16)
    contexts = [random_text(rng, int(n)) for n in (3, 20, 36, 37, 90, 200)]
    questions = [random_text(rng, int(n)) for n in rng.integers(1, 30, len(contexts))]
    answers = []
    for context in contexts:
        _, starts, ends = task.preprocessor.tokenizer.tokenize_with_offsets([context])
        first = int(rng.integers(0, len(starts[0])))
        last = min(first + int(rng.integers(0, 4)), len(ends[0]) - 1)
        answers.append((starts[0][first], ends[0][last]))
    x, y = task.preprocessor(columns(questions, contexts), y=task.encode_labels(answers))
    inputs, details = task.pack(tensors(questions, contexts))
    np.testing.assert_array_equal(inputs["token_ids"], x["token_ids"])
    assert len(inputs["token_ids"]) > len(contexts)  # there are chunks
    options = {"n_best": 2, "no_answer": False, "max_answer_length": 64}
    found = task.decoded(outputs_of(task, x, np.asarray(y)), details, len(contexts), **options)
    for ((start, end, text, score), *_), (want_start, want_end), context in zip(
        task.to_answers(found), answers, contexts, strict=True
    ):
        assert (start, end) == (want_start, want_end)
        assert text == context[start:end] and score > 0.99


@pytest.mark.eager
def test_packing():
    """`[CLS] question [SEP] context [SEP]`; only `[CLS]` and the context may be answers."""
    task = reader(sequence_length=20, max_question_length=3)
    question, context = "天地玄黄", "日月盈昃辰宿列张寒来暑往秋收"
    inputs, details = task.pack(tensors([question], [context]))
    ids = task.preprocessor.tokenizer
    want = [2, *ids(question)[:3], 3, *ids(context)[:14], 3]
    assert inputs["token_ids"].numpy().tolist() == [want]
    assert inputs["answer_mask"].numpy().tolist() == [[1] + 4 * [0] + 14 * [1] + [0]]
    assert inputs["segment_ids"].numpy().tolist() == [5 * [0] + 15 * [1]]
    assert details["starts"].numpy()[0].tolist() == 5 * [-1] + list(range(14)) + [-1]
    flat = reader(sequence_length=20, pair_segments=False)
    assert not flat.pack(tensors([question], [context]))[0]["segment_ids"].numpy().any()
    scores = np.asarray(task(inputs))[0]
    allowed = inputs["answer_mask"].numpy()[0] == 1
    assert (np.isfinite(scores) == np.triu(allowed[:, None] & allowed)).all()
    assert np.isfinite(np.asarray(reader("separate")(inputs))[0, allowed]).all()


@pytest.mark.eager
def test_answers_in_other_chunks_are_none(rng):
    task = reader(sequence_length=24, stride=8)
    context = random_text(rng, 60).replace(" ", "天")
    x, y = task.preprocessor(columns(["谁"], [context]), y=task.encode_labels([(40, 42)]))
    y = np.asarray(y)
    assert (y[:, 0] > 0).sum() in (1, 2) and ((y == 0).all(axis=1) == (y[:, 0] == 0)).all()
    _, y = task.preprocessor(columns(["谁"], [context]), y=task.encode_labels([None]))
    assert not np.asarray(y).any()
    # an answer that begins inside a token gets all of it
    _, y = task.preprocessor(columns(["谁"], ["天Ａ\u0301地"]), y=task.encode_labels([(2, 4)]))
    assert np.asarray(y).tolist() == [[4, 5]]


def test_best_answers(rng):
    """The n best over all chunks, each once, as a search through all spans finds them."""
    chunks, length = 3, 7
    details = {
        "text": tf.constant([0, 0, 1]),
        "starts": tf.constant([[-1, -1, 0, 1, 2, 3, -1], [-1, -1, 2, 3, 4, 5, -1], 2 * [-1] + [0, 1] + 3 * [-1]]),
        "ends": tf.constant([[-1, -1, 1, 2, 3, 4, -1], [-1, -1, 3, 4, 5, 6, -1], 2 * [-1] + [1, 2] + 3 * [-1]]),
        "context": tf.constant(["天地玄黄宇宙", "洪荒"]),
    }  # fmt: skip
    scores = rng.normal(size=(chunks, length, length)).astype("float32")
    scores[:, np.arange(length)[:, None] > np.arange(length)] = -np.inf
    probabilities = np.exp(scores) / np.exp(scores).sum((1, 2), keepdims=True)
    expected = [{}, {}]
    for c, m, n in np.ndindex(chunks, length, length):
        start, end = int(details["starts"][c, m]), int(details["ends"][c, n])
        if start >= 0 and end >= 0 and 0 <= n - m < 3:
            best = expected[int(details["text"][c])]
            best[start, end] = max(best.get((start, end), 0), probabilities[c, m, n])
    task = reader()
    options = {"n_best": 5, "no_answer": True, "max_answer_length": 3}
    found = task.to_answers(answers_of_scores(scores, details, 2, **options))
    none = [probabilities[:2, 0, 0].min(), probabilities[2, 0, 0]]
    for row, answers, of_none, context in zip(found, expected, none, ["天地玄黄宇宙", "洪荒"]):
        answers[0, 0] = of_none
        want = sorted(answers.items(), key=lambda item: -item[1])[:5]
        assert [(start, end) for start, end, *_ in row] == [span for span, _ in want]
        np.testing.assert_allclose([score for *_, score in row], [p for _, p in want], rtol=1e-5)
        assert all(text == context[start:end] for start, end, text, _ in row)


@pytest.mark.parametrize("head", EACH_HEAD)
def test_learns(rng, head):
    """The answer is what follows 在; without it there is none."""
    task = reader(head, num_layers=2)
    task.compile(keras.optimizers.Adam(0.01))
    contexts, answers = [], []
    for i in range(32):
        before, after = (random_text(rng, int(n)).replace("在", "") for n in rng.integers(2, 9, 2))
        contexts.append(f"{before}在北京{after}" if i % 4 else before + after)
        answers.append((len(before) + 1, len(before) + 3) if i % 4 else None)
    data = columns(["谁"] * 32, contexts)
    x, y = task.preprocessor(data, y=task.encode_labels(answers))
    losses = [float(task.train_on_batch(x, y)) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
    found = task.predict(data, no_answer=True, verbose=0)
    wanted = [(0, 0) if answer is None else answer for answer in answers]
    right = sum(row[0][:2] == want for row, want in zip(found, wanted, strict=True))
    assert right >= 29
    assert all(row[0][:2] != (0, 0) for row in task.predict(data, verbose=0))


@pytest.mark.parametrize("head", EACH_HEAD)
def test_padding_and_batches_change_nothing(rng, head):
    task = reader(head, sequence_length=40)
    contexts = [random_text(rng, int(n)) for n in rng.integers(2, 90, 6)]
    questions = [random_text(rng, int(n)) for n in rng.integers(1, 20, 6)]
    together = task.predict(columns(questions, contexts), n_best=2, verbose=0)
    for i, row in enumerate(together):
        alone = task.predict((questions[i : i + 1], contexts[i : i + 1]), n_best=2, verbose=0)[0]
        assert [answer[:3] for answer in alone] == [answer[:3] for answer in row]
        np.testing.assert_allclose([a[3] for a in alone], [a[3] for a in row], rtol=1e-4)
    dataset = tf.data.Dataset.from_tensor_slices(columns(questions, contexts)).batch(4)
    assert [row[0][:3] for row in task.predict(dataset, verbose=0)] == [r[0][:3] for r in together]


@pytest.mark.oracle
def test_original_weights(original, tmp_path, rng):
    """An original checkpoint and a head of bert4keras give bert4keras' scores."""
    original.make_checkpoint(tmp_path, small_config(), seed=2018)
    task = roformer_tf.RoFormerQuestionAnswering.from_preset(tmp_path, head_dim=8)
    randomized(task.pointer)
    ids = rng.integers(5, 200, (2, 9)).astype("int32")
    mask = np.array([[1, 0, 0, 1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 1, 1, 0, 0]])
    (hidden,) = original.forward(tmp_path, {"token_ids": ids, "segment_ids": 0 * ids})
    arguments = {"heads": 1, "head_size": 8, "use_bias": False}
    weights = task.pointer.get_weights()
    want = original.span_scores("GlobalPointer", arguments, hidden, mask == 1, weights)[:, 0]
    found = np.asarray(task({"token_ids": ids, "answer_mask": mask}))
    np.testing.assert_allclose(found, want, atol=2e-5)


@pytest.mark.eager
@pytest.mark.parametrize("head", EACH_HEAD)
def test_files(tmp_path, rng, head):
    data = columns(["谁", "天地"], [random_text(rng, 30), "北京"])
    assert check_files(reader(head), data, tmp_path).head == head


@pytest.mark.eager
@pytest.mark.slow
def test_every_form_of_data(rng):
    """Lists, datasets, generators and model inputs give the same loss, grouped by length or not."""
    task = reader("separate")
    contexts = [random_text(rng, int(n)) + "北京" for n in rng.integers(1, 25, 6)]
    data = columns(["谁", "天地"] * 3, contexts)
    answers = [(len(context) - 2, len(context)) for context in contexts]
    answers[4] = None
    _, dataset = check_forms_of_data(task, data, answers)
    task.compile(keras.optimizers.SGD(0.0))
    for more in ({}, {"group_by_length": True}):
        history = task.fit(data, answers, batch_size=4, verbose=0, **more)
        assert np.isfinite(history.history["loss"]).all()
    assert task.predict(dataset, verbose=0) == task.predict(data, verbose=0)
    context = "北\ud83d京"  # half an emoji, which no tensor can hold
    [found] = task.predict(columns(["谁"], [context]), verbose=0, n_best=9, no_answer=True)
    assert "\ud83d" in {text for *_, text, _ in found}
    assert all(text == context[start:end] for start, end, text, _ in found)


@pytest.mark.slow
def test_low_precision_and_lora(rng):
    data, answers = columns(["谁", "天"], ["我在北京", random_text(rng, 9)]), [(2, 4), None]
    expected = reader().evaluate(data, answers, verbose=0)
    half = roformer_tf.RoFormerQuestionAnswering(
        backbone(dtype="mixed_bfloat16"), reader().preprocessor, head_dim=8
    )
    half.set_weights(reader().get_weights())
    # a sum of dot products whose parts round by 2^-8
    np.testing.assert_allclose(half.evaluate(data, answers, verbose=0), expected, rtol=0.1)
    assert half.output.dtype == "float32"
    task = reader()
    check_lora(task, *task.preprocessor(data, y=task.encode_labels(answers)))
    assert len(task.predict(data, verbose=0)) == 2


def test_errors():
    task, data = reader(), columns(["谁"], ["我在北京"])
    for answers, message in (
        ([(2, 9)], "within its context.*4 characters"),
        ([(3, 2)], "0 <= start < end"),
        ([(1, 2, 3)], "must be `\\(start, end\\)`"),
        (["北京"], "must be `\\(start, end\\)`"),
        (None, "Labels are missing"),
    ):
        with pytest.raises(ValueError, match=message):
            task.evaluate(data, answers, verbose=0)
    with pytest.raises(ValueError, match="dictionary of `question` and `context`"):
        task.predict({"question": ["谁"], "text": ["我"]}, verbose=0)
    with pytest.raises(ValueError, match="of one length"):
        task.predict(columns(["谁", "谁"], ["我"]), verbose=0)
    with pytest.raises(TypeError, match="Every example must be a string"):
        task.predict(columns(["谁"], [None]), verbose=0)
    with pytest.raises(ValueError, match="n_best"):
        task.predict(data, n_best=0, verbose=0)
    with pytest.raises(ValueError, match="at least 5"):
        roformer_tf.RoFormerQuestionAnsweringPreprocessor(tokenizer(), sequence_length=4)
    assert task.predict(columns(["谁"], [""]), verbose=0) == [[]]
