"""Reading as a labelled task: its examples, chunks and batches, its steps, its runs."""

import functools
import json
import tomllib

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.layers import SpanCrossentropy
from roformer_tf.pretraining import (
    MultiTaskPretrainer,
    MultiTaskSettings,
    ReadingTaskSettings,
    Stage,
    choose_strategy,
    train_tasks,
)
from roformer_tf.pretraining.multi_task_run import MultiTaskRun
from roformer_tf.pretraining.reading_files import ReadingReader, split_readings
from roformer_tf.pretraining.reading_windows import ReadingWindows
from roformer_tf.pretraining.settings import DataSettings
from roformer_tf.pretraining.task_settings import make_task_settings
from tests.pretraining import multi_tasks, readings, small_corpus, test_multi_task
from tests.pretraining.builders import make_batches, make_task
from tests.pretraining.readings import ANSWER, QUESTION, READING, STAGES, values
from tests.pretraining.test_multi_task import fit, kill_and_resume, lamb, rows, trained
from tests.pretraining.test_pretrainer import TOLERANCE, distance


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return readings.write(tmp_path_factory.mktemp("reading"))


# === Settings and examples ===


def test_keys_tell_the_kind_of_a_task(folder):
    made = values(folder)
    settings = MultiTaskSettings.from_dict(made)
    assert isinstance(settings.tasks["webqa"], ReadingTaskSettings)
    assert settings.with_values({"tasks.webqa.chunk_step": 5}).tasks["webqa"].chunk_step == 5

    def error(changes=(), without=()):
        task = {k: v for k, v in made["tasks"]["webqa"].items() if k not in without}
        with pytest.raises(ValueError) as raised:
            MultiTaskSettings.from_dict({**made, "tasks": {"webqa": task | dict(changes)}})
        return str(raised.value)

    assert error(without=["answers"]) == "[tasks.webqa] lacks answers"
    assert error({"text": "a", "label": "b"}).startswith(
        "[tasks.webqa] has keys of two kinds of tasks: text, label of classification, and question,"
    )
    fields = ("question", "context", "answers", "chunk_step")
    assert "[tasks.webqa] lacks the fields of its examples: `text`" in error(without=fields)
    assert "Unknown keys in [tasks.webqa]: title. Known are files, question" in error({"title": 1})
    assert "[tasks.webqa] `chunk_step` must be" in error({"chunk_step": 0})
    assert "[tasks.webqa] `max_question_length`" in error({"max_question_length": 1.5})
    assert "[tasks.webqa] `mask_rate`" in error({"mask_rate": 2})
    assert "[tasks.webqa] `context` must be a string" in error({"context": 3})
    # a .tsv file has no place for answers
    with pytest.raises(ValueError, match=r"Expected text files .jsonl or .json.*topics.tsv"):
        wrong = values(folder, files=[str(folder / "topics.tsv")])
        train_tasks(MultiTaskSettings.from_dict(wrong), folder / "none", verbose=False)


def test_examples(tmp_path):
    path = tmp_path / "train.jsonl"
    good = [
        {"q": "谁", "p": " 我\0和你", "a": [["你", 4], ["你", 4], ["我", 1]]},
        {"q": "谁", "p": "我和你", "a": [{"text": "和你", "answer_start": 1}]},
        {"q": "谁", "p": "我和你", "a": {"text": ["你", "我"], "answer_start": [2, 0]}},
        {"q": "谁", "p": "我和你", "a": [["", -1]]},
        {"q": "谁", "p": "我和你", "a": []},
        {"q": " ", "p": "我和你", "a": []},  # empty
    ]
    bad = [
        ({"q": "谁", "p": "我", "a": [["我", 1]]}, "the answer '我' does not start at 1 of `p`"),
        ({"q": "谁", "p": "我", "a": [["我", -2]]}, "the answer '我' does not start at -2 of `p`"),
        ({"q": "谁", "p": "我"}, "not an object with a list `a` of answers with text and start"),
        ({"q": "谁", "p": "我", "a": ["我"]}, "not an object with a list `a` of"),
        ({"q": "谁", "p": "我", "a": [["我", True]]}, "not an object with a list `a` of"),
        ({"q": "谁", "p": "我", "a": {"text": ["我"]}}, "not an object with a list `a` of"),
        ({"q": "谁", "a": []}, "not an object with a string `p`"),
        (["谁"], "not an object"),
    ]
    lines = [*good, *(line for line, _ in bad)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\nno json\n", encoding="utf-8")
    reader = ReadingReader("q", "p", "a")
    answers, question, context = split_readings(list(reader.documents(str(path))))
    assert answers.numpy().tolist() == [
        [[4, 5], [1, 2]],
        [[1, 3], [-1, -1]],
        [[2, 3], [0, 1]],
        *[[[-1, -1], [-1, -1]]] * 2,
    ]
    assert [text.decode() for text in question.numpy()] == ["谁"] * 5
    assert [text.decode() for text in context.numpy()] == [" 我 和你", *["我和你"] * 4]
    assert (reader.empty_documents, reader.bad_lines) == (1, 9)
    for found, (_, reason) in zip(reader.first_bad_lines, bad):
        assert found.split(": ", 1)[1].startswith(reason)
    with pytest.raises(ValueError, match="strings `q` and `p`.*raise `tasks.x.max_bad_lines`"):
        list(ReadingReader("q", "p", "a", max_bad_lines=8, task="x").documents(str(path)))
    # none of the examples has an answer
    answers, *_ = split_readings(tf.constant(["\0a\0b"]))
    assert answers.numpy().tolist() == [[[-1, -1]]]


# === Chunks and batches ===


def windows_of(length, batch_size=8, keep_all=False, **options):
    task = ReadingTaskSettings(files="x.json", **READING, **options)
    preprocessor = roformer_tf.RoFormerQuestionAnsweringPreprocessor(
        small_corpus.tokenizer(), max_question_length=task.max_question_length, pair_segments=False
    )
    stage = Stage(length, batch_size, 1, 1e-3)
    data = DataSettings(files="x.txt")
    return ReadingWindows([], preprocessor, task, 1, stage, data, (4, 0), 1, keep_all)


@pytest.mark.parametrize(("length", "step"), [(24, 5), (40, 128)])
def test_chunks_slide_as_in_the_original(seed, length, step):
    rng = np.random.default_rng([seed, 3])
    documents, expected = [], []
    for size in (1, 10, 18, 19, 40, 77, 150):
        question = "".join(rng.choice(small_corpus.CHARACTERS, size=rng.integers(1, 4)))
        context = "".join(rng.choice(small_corpus.CHARACTERS, size=size))
        starts = rng.integers(size, size=rng.integers(0, 3))
        spans = [(int(s), int(min(s + rng.integers(1, 6), size))) for s in starts]
        spans = list(dict.fromkeys(spans))
        numbers = " ".join(f"{s} {e}" for s, e in spans)
        documents.append(f"{numbers}\0{question}\0{context}")
        expected += readings.sliding_chunks(question, context, spans, length, step)
    windows = windows_of(length, chunk_step=step)
    windows.documents = lambda number: tf.constant(documents)
    made = windows.chunks(0)
    tokenizer = small_corpus.tokenizer()
    assert len(expected) == len(made["spans"])
    for row, (question, chunk, label) in enumerate(expected):
        ids = [tokenizer.start_token_id, *(tokenizer.token_to_id(c) for c in question)]
        ids += [tokenizer.end_token_id, *(tokenizer.token_to_id(c) for c in chunk)]
        ids += [tokenizer.end_token_id]
        assert made["token_ids"][row, : len(ids)].numpy().tolist() == ids
        assert int(made["lengths"][row]) == len(ids) == int(np.sum(made["padding_mask"][row]))
        allowed = [1] + [0] * (len(question) + 1) + [1] * len(chunk)
        allowed += [0] * (length - len(allowed))
        assert made["answer_mask"][row].numpy().tolist() == allowed
        assert tuple(made["spans"][row].numpy()) == label
    assert not np.any(made["segment_ids"])


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize(("answered", "others"), [(23, 60), (60, 7), (20, 20), (9, 0), (0, 9)])
def test_half_of_a_batch_may_lack_an_answer(size, answered, others, seed):
    rng = np.random.default_rng([seed, 4])
    lengths = tf.constant(rng.integers(5, 30, answered + others).astype("int32"))
    has_answer = rng.permutation([True] * answered + [False] * others)
    spans = tf.constant(np.where(has_answer[:, None], [3, 4], 0).astype("int32"))
    windows = windows_of(32, batch_size=size)

    def order(window):
        return windows.order({"window": window, "lengths": lengths, "spans": spans}).numpy()

    batches = order(tf.constant(3, tf.int64))
    assert batches.shape[1] == size
    # as many as there can be
    full = min((answered + others) // size, answered // (size - size // 2))
    assert len(batches) == full
    kept = batches.ravel()
    assert len(set(kept)) == len(kept)
    for batch in batches:
        assert (~has_answer[batch]).sum() <= size // 2
    # nothing is dropped but what is too much, or fills no batch
    dropped = answered + others - len(kept)
    assert dropped < size or (~has_answer[kept]).sum() == full * (size // 2)
    assert np.array_equal(batches, order(tf.constant(3, tf.int64)))
    if full > 3:
        assert not np.array_equal(batches, order(tf.constant(4, tf.int64)))
        widest = [lengths.numpy()[batch].max() for batch in batches]
        assert np.mean(widest) < lengths.numpy().max()  # of similar length


def test_hidden_tokens_are_pairs_within_a_part():
    """Short answers and questions stay; elsewhere 15 %, of which eight tenths are the mask."""
    windows = windows_of(64, batch_size=400, mask_rate=0.15)
    size, width = 400, 64
    ids = np.full((size, width), 30, "int32")
    ids[:, 0], ids[:, 6], ids[:, -1] = (2, 3, 3)
    real = np.ones((size, width), "int32")
    mask = real * (np.arange(width) > 6) * (np.arange(width) < width - 1)
    mask[:, 0] = 1
    spans = np.zeros((size, 2), "int32")
    spans[: size // 2] = (30, 35)  # 23 before, 6 of the answer, 27 after
    batch = {
        **{"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": real, "answer_mask": mask},
        **{"spans": spans, "real": np.ones(size, "int32")},
        **{name: tf.constant(2, tf.int64) for name in ("window", "index", "count")},
    }
    made = windows.with_targets({name: tf.constant(x) for name, x in batch.items()})
    changed = made["token_ids"].numpy() != ids
    assert not changed[:, :7].any() and not changed[: size // 2, 30:36].any()
    assert changed[size // 2 :, 30:36].any()
    assert not changed[:, -1].any()
    context = made["token_ids"].numpy()[:, 7:-1]
    share = (context == small_corpus.tokenizer().mask_token_id).mean()
    # two chances of 7.5 % each, in all 0.144; four standard deviations of about 20,000 tokens, in
    # pairs; the 6 of the answer in half of the sequences are spared
    assert abs(share - 0.8 * 0.144 * (1 - 3 / 56)) < 4 * np.sqrt(2 * 0.11 / 22_400)
    assert made["labels"].numpy()[:, 0].tolist() == [30 * 64 + 35] * 200 + [0] * 200
    assert np.all(made["label_weights"] == 1.0)


def test_too_few_answers_are_an_error():
    windows = windows_of(24)
    windows.documents = lambda number: tf.constant([f"\0天\0{'地' * i}" for i in range(1, 30)])
    sequences = {**windows.chunks(0), "window": tf.constant(0, tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="At most half .* no answer. Lower `b"):
        list(windows.batches(sequences))


# === Steps ===


def reader_and_classifier(backbone):
    reader = roformer_tf.RoFormerQuestionAnswering(backbone, head_dim=8, dropout=0.0)
    classifier = roformer_tf.RoFormerTextClassifier(backbone, 3, dropout=0.0)
    return {"webqa": reader, "topics": classifier}


make_pretrainer = functools.partial(test_multi_task.make_pretrainer, models=reader_and_classifier)


def of_task(batch, task, rng):
    """A batch of the masked LM as one of a task."""
    size, width = batch["token_ids"].shape
    batch = {**batch, "task": np.full(size, task, "int32"), "answer_mask": batch["padding_mask"]}
    if task == 0:
        return batch
    labels = rng.integers(0, 3, size)
    if task == 1:
        mask = batch["padding_mask"] * (np.arange(width) != 1)  # a question of one token
        lengths = batch["padding_mask"].sum(1)
        last = rng.integers(2, lengths)
        first = np.array([rng.integers(2, end + 1) for end in last])
        labels = np.where(rng.random(size) < 0.3, 0, first * width + last)
        batch["answer_mask"] = mask.astype("int32")
    weights = np.ones((size, 1), "float32")
    weights[-1] = task != 1  # what fills a held-out batch
    return {
        **batch,
        "mask_positions": np.zeros((size, 1), "int32"),
        "labels": labels[:, None].astype("int32"),
        "label_weights": weights,
    }


@pytest.fixture(scope="module")
def data(seed):
    rng = np.random.default_rng([seed, 9])
    tasks = [1, 0, 1, 2]
    batches = [of_task(b, t, rng) for b, t in zip(make_batches(rng, len(tasks)), tasks)]
    shapes = [tuple(v.shape) for v in make_pretrainer(None).trainable_variables]
    return [rng.normal(0, 0.3, shape).astype("float32") for shape in shapes], batches


def inputs_of(batch):
    names = ("token_ids", "segment_ids", "padding_mask", "answer_mask")
    return {name: batch[name] for name in names}


def test_the_loss_is_that_of_the_model(data):
    weights, batches = data
    pretrainer = make_pretrainer(weights)
    reader, batch = pretrainer.classifiers["webqa"], batches[0]
    loss, right = pretrainer.loss_sum({name: tf.constant(x) for name, x in batch.items()})
    backbone = {name: x for name, x in inputs_of(batch).items() if name != "answer_mask"}
    features = keras.ops.convert_to_numpy(reader.backbone(backbone))
    expected, hits = readings.oracle_loss(features, batch, reader.pointer.dense.kernel.numpy())
    np.testing.assert_allclose(float(loss), expected, rtol=2e-6)  # float32
    assert float(right) == hits
    # and of the model's own loss, which takes spans
    width = batch["token_ids"].shape[1]
    spans = np.stack(np.divmod(batch["labels"][:, 0], width), -1)
    real = batch["label_weights"][:, 0] > 0
    scores = keras.ops.convert_to_numpy(reader(inputs_of(batch)))
    own = float(SpanCrossentropy()(spans[real], scores[real])) * real.sum()
    np.testing.assert_allclose(float(loss), own, rtol=2e-6)
    np.testing.assert_allclose(pretrainer.evaluate_batches([batch])["loss"], own / real.sum(), 2e-6)


@pytest.fixture(scope="module")
def reference(data):
    weights, batches = data
    pretrainer = make_pretrainer(weights)
    history = fit(pretrainer, batches)
    assert history["task"] == [1, 0, 1, 2]
    assert distance(trained(pretrainer), weights) > 1e-3
    return trained(pretrainer), history


def test_slices_change_nothing(data, reference):
    weights, batches = data
    pretrainer = make_pretrainer(weights, slices=4)
    history = fit(pretrainer, batches)
    for name in ("loss", "accuracy", "task", "tokens"):
        np.testing.assert_allclose(history[name], reference[1][name], rtol=2e-6, err_msg=name)
    assert distance(trained(pretrainer), reference[0]) < TOLERANCE


@pytest.mark.slow
def test_a_step_is_that_of_the_model(data):
    """Of `RoFormerQuestionAnswering` by Keras; the heads of the other tasks stay as they are."""
    weights, (_, _, batch, _) = data
    batch = {**batch, "label_weights": np.ones_like(batch["label_weights"])}
    shared, alone = make_pretrainer(weights), make_pretrainer(weights)
    fit(shared, [batch])
    reader = alone.classifiers["webqa"]
    reader.compile(optimizer=lamb())
    spans = np.stack(np.divmod(batch["labels"][:, 0], batch["token_ids"].shape[1]), -1)
    keras.Model.train_on_batch(reader, inputs_of(batch), spans)
    moved = {id(v) for v in reader.trainable_variables}
    for mine, before, variable in zip(
        trained(shared), weights, alone.trainable_variables, strict=True
    ):
        # a step of LAMB is 2 % of the norm of a weight; float32 sums in another order
        np.testing.assert_allclose(mine, variable.numpy(), rtol=1e-5, atol=1e-6)
        assert np.array_equal(mine, before) == (id(variable) not in moved), variable.path


def test_another_head_is_an_error():
    task = make_task()
    reader = roformer_tf.RoFormerQuestionAnswering(task.backbone, head="separate", dropout=0.0)
    with pytest.raises(
        ValueError, match="must have `head=\"joint\"`.*'webqa' with head='separate'"
    ):
        MultiTaskPretrainer(task, {"webqa": reader})


# === Runs ===


@pytest.mark.slow
def test_a_batch_is_a_function_of_its_place(folder, tmp_path):
    settings = MultiTaskSettings.from_dict(values(folder, topics=True))
    run = MultiTaskRun(settings, tmp_path, choose_strategy(), [], False, False)

    def take(count, first_step=0, places=((0, 0),) * 3):
        batches = run.data.training_batches(0, first_step, list(places))
        return list(batches.take(count).as_numpy_iterator())

    whole = take(24)
    places = [[0, 0] for _ in range(3)]
    for batch in whole[:14]:
        places[batch["task"][0]] = [int(batch["window"][0]), int(batch["index"][0]) + 1]
    for mine, other in zip(take(10, 14, places), whole[14:], strict=True):
        assert sorted(mine) == sorted(other)
        for name, value in mine.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    of_reading = [batch for batch in whole if batch["task"][0] == 1]
    assert len(of_reading) > 5
    answer = [run.tokenizer.token_to_id(character) for character in ANSWER]
    for batch in of_reading:
        width = batch["token_ids"].shape[1]
        start, end = np.divmod(batch["labels"][:, 0], width)
        assert (end == 0).sum() <= 4 and width <= 32
        for row, (first, last) in enumerate(zip(start, end)):
            found = batch["token_ids"][row, first : last + 1].tolist()
            assert found == (answer if last else [run.tokenizer.start_token_id])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that learns to find the answers, in two stages."""
    folder = readings.write(tmp_path_factory.mktemp("whole"), count=600)
    stages = [{**STAGES[0], "steps": 120, "learning_rate": 2e-2}, {**STAGES[1], "steps": 30}]
    made = values(folder, stages=stages, mask_rate=0.05, frequency=8)
    result = train_tasks(MultiTaskSettings.from_dict(made), folder / "run", verbose=False)
    assert result.completed
    return folder, result


@pytest.mark.slow
def test_reading_is_learned_and_its_preset_answers(whole):
    folder, result = whole
    held_out = {
        (row["stage"], row["task"]): row for row in rows(folder / "run" / "held_out_tasks.csv")
    }
    assert float(held_out["2", "webqa"]["accuracy"]) > 0.9
    assert float(held_out["2", "webqa"]["loss"]) < 0.5
    assert int(held_out["1", "webqa"]["predictions"]) > 20
    task = folder / "run" / "stage-2-24" / "tasks" / "webqa"
    reader = roformer_tf.RoFormerQuestionAnswering.from_preset(str(task))
    assert reader.head == "joint" and reader.dropout == 0.0
    assert reader.preprocessor.pair_segments is False
    rng = np.random.default_rng(1)
    text = "".join(rng.choice(small_corpus.CHARACTERS[3:-2], size=900))
    # also beyond the first chunk of `max_length` tokens, and behind what is no token
    contexts = [f"\u200b {text[:9]}{ANSWER}{text[9:20]}", f"{text[:700]}{ANSWER}{text[700:]}"]
    contexts += [text[:20]]
    x = {"question": [QUESTION] * 3, "context": contexts}
    answers = reader.predict(x, verbose=0, no_answer=True)
    assert answers == result.classifiers["webqa"].predict(x, verbose=0, no_answer=True)
    # the probability of no answer is the least of all chunks, so the long one has an answer
    assert [answer[:3] for (answer,) in answers] == [
        *((11, 13, ANSWER), (700, 702, ANSWER), (0, 0, "")),
    ]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(folder, tmp_path):
    """`kill -9`, then to the end."""
    made = values(folder, stages=[{**STAGES[0], "steps": 8}])
    made["model"] |= {"dropout": 0.1, "attention_dropout": 0.1}
    made["run"] |= {"deterministic": True, "checkpoint_every": 2}
    path = multi_tasks.write_toml(tmp_path / "settings.toml", made)
    _, whole = kill_and_resume(path, tmp_path, after=(5,))
    assert {row["task"] for row in rows(whole / "tasks.csv")} == {"masked_lm", "webqa"}


@pytest.mark.slow
def test_a_run_on_replicas_and_in_slices(folder, tmp_path):
    """The whole run: 2 replicas of 2 slices give the weights of one device."""
    weights = []
    for replicas, run in ((1, {}), (2, {"micro_batch_size": 2})):
        made = values(folder, stages=[{**STAGES[0], "steps": 6}])
        made["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
        made["run"] |= run
        settings = MultiTaskSettings.from_dict(made)
        strategy = choose_strategy(replicas)
        result = train_tasks(settings, tmp_path / str(replicas), strategy, verbose=False)
        pointer = result.classifiers["webqa"].pointer.dense.kernel
        weights.append([*result.task.get_weights(), pointer.numpy()])
    assert distance(*weights) < TOLERANCE


def test_the_settings_of_the_example(repository):
    """Its reading task is a comment: CLUE has no such file."""
    text = (repository / "examples" / "train_tasks.toml").read_text(encoding="utf-8")
    block = text[text.index("# [tasks.webqa]") :].split("\n\n")[0]
    table = tomllib.loads("\n".join(line.removeprefix("# ") for line in block.splitlines()))
    task = make_task_settings("webqa", table["tasks"]["webqa"])
    assert (task.max_length, task.chunk_step, task.mask_rate) == (512, 128, 0.15)
    assert (task.question, task.context, task.answers) == ("question", "passage", "answers")
