"""Labelled tasks and the masked LM on one backbone: batches, steps, runs, settings."""

import csv
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.__main__ import main
from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.optimizers import OriginalLAMB, PiecewiseLinear
from roformer_tf.pretraining import (
    MultiTaskPretrainer,
    MultiTaskSettings,
    Pretrainer,
    choose_strategy,
    train_tasks,
)
from roformer_tf.pretraining.example_files import ExampleReader, split_examples
from roformer_tf.pretraining.multi_task_batches import task_of_step
from roformer_tf.pretraining.multi_task_run import MultiTaskRun
from tests.pretraining import multi_tasks, run_processes, small_corpus
from tests.pretraining.builders import VOCABULARY_SIZE, make_batches, make_task
from tests.pretraining.test_pretrainer import TOLERANCE, distance

SHORT = [{"max_length": 32, "global_batch_size": 8, "steps": 8, "learning_rate": 1e-2}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return multi_tasks.write(tmp_path_factory.mktemp("tasks"))


def settings_of(folder, **tables):
    return MultiTaskSettings.from_dict(multi_tasks.values(folder, **tables))


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# === Examples ===


def documents(path, *options, **more):
    reader = ExampleReader(*options, **more)
    examples = tf.constant(list(reader.documents(str(path))))
    labels, *texts = split_examples(examples, len(reader.fields))
    return labels.numpy().tolist(), [[t.decode() for t in x.numpy()] for x in texts], reader


def test_examples_of_json_lines(tmp_path):
    path = tmp_path / "train.json"
    values = [
        {"a": "天地", "b": "玄黄", "y": 1},
        {"a": "宇\0宙", "b": "", "y": "0"},
        {"a": " ", "b": "洪荒", "y": 0},  # empty
        {"a": "日月", "b": "盈昃", "y": "-"},
        {"a": "日月", "y": 1},
        {"a": "日月", "b": "盈昃", "y": True},
        ["日月"],
    ]
    path.write_text("\n".join(map(json.dumps, values)) + "\nno json\n")
    labels, texts, reader = documents(path, "a", "y", ["0", "1"], "b")
    assert labels == [1, 0]
    assert texts == [["天地", "宇 宙"], ["玄黄", ""]]
    assert (reader.empty_documents, reader.bad_lines) == (1, 5)
    reasons = [bad.split(": ", 1)[1] for bad in reader.first_bad_lines]
    assert reasons[:4] == [
        "the label '-' is unknown",
        "not an object with a string `b`",
        "not an object with a string or an integer `y`",
        "not an object",
    ]
    with pytest.raises(ValueError, match="fields `a`, `b`, `y`.*raise `tasks.nli.max_bad_lines`"):
        documents(path, "a", "y", ["0", "1"], "b", max_bad_lines=4, task="nli")


def test_examples_of_a_table(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text('label\ttext\n是\t"天地\n否\t玄\t黄\n否\t宇宙\r\n', encoding="utf-8")
    labels, texts, reader = documents(path, "text", "label", ["否", "是"])
    assert labels == [1, 0] and texts == [['"天地', "宇宙"]]  # no quotes in such a table
    assert reader.first_bad_lines == [f"{path}:3: 3 values for 2 columns"]
    with pytest.raises(ValueError, match="expected the columns sentence. Received: label, text"):
        documents(path, "sentence", "label", ["否", "是"])


# === Batches ===


def test_tasks_are_drawn_by_their_frequencies():
    steps, frequencies = 4000, [60, 2, 5, 0.5]
    draw = tf.function(lambda step: task_of_step(step, 3, frequencies), autograph=False)
    drawn = np.array([int(draw(tf.constant(i, tf.int64))) for i in range(steps)])
    shares = np.bincount(drawn, minlength=4) / steps
    expected = np.array(frequencies) / sum(frequencies)
    # four standard deviations
    assert (abs(shares - expected) < 4 * np.sqrt(expected / steps)).all()
    assert int(task_of_step(tf.constant(0, tf.int64), 3, [0.0, 1.0])) == 1


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run before its first step: its data, its model."""
    output = tmp_path_factory.mktemp("run")
    settings = settings_of(folder)
    return MultiTaskRun(settings, output, choose_strategy(), [], False, False)


def take(run, count, first_step=0, places=((0, 0),) * 3):
    batches = run.data.training_batches(0, first_step, list(places))
    return list(batches.take(count).as_numpy_iterator())


@pytest.mark.slow
def test_a_batch_is_a_function_of_its_place(run):
    whole = take(run, 12)
    tasks = [int(batch["task"][0]) for batch in whole]
    drawn = [int(task_of_step(tf.constant(i, tf.int64), 4, [2, 1, 1])) for i in range(12)]
    assert tasks == drawn and set(tasks) == {0, 1, 2}
    places = [[0, 0] for _ in range(3)]
    for batch in whole[:7]:
        assert [batch[name].min() == batch[name].max() for name in ("window", "index", "task")]
        places[batch["task"][0]] = [int(batch["window"][0]), int(batch["index"][0]) + 1]
    for mine, other in zip(take(run, 5, 7, places), whole[7:], strict=True):
        assert sorted(mine) == sorted(other)
        for name, value in mine.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.slow
def test_labelled_batches_are_what_the_preprocessor_makes(run, folder):
    """Each sequence is an example with its label, except for the tokens that are hidden."""
    tokenizer = run.tokenizer
    lines = (folder / "topics.tsv").read_text(encoding="utf-8").splitlines()[1:]
    table = [line.split("\t")[1:] for line in lines]
    single = {tuple(run.data.preprocessors[0]([t])["token_ids"][0].numpy()): y for t, y in table}
    pairs = [json.loads(line) for line in (folder / "pairs.json").read_text().splitlines()]
    both = {
        tuple(run.data.preprocessors[1](([p["a"]], [p["b"]]))["token_ids"][0].numpy()): p["label"]
        for p in pairs
    }
    seen, hidden, tokens = {1: 0, 2: 0}, 0, 0
    for batch in take(run, 60):
        task = int(batch["task"][0])
        if task == 0:
            continue
        assert batch["token_ids"].shape[0] == (8 if task == 1 else 4)
        assert batch["labels"].shape[1] == 1 and (batch["label_weights"] == 1).all()
        assert (batch["segment_ids"] == 0).all() and (batch["mask_positions"] == 0).all()
        for ids, real, label in zip(batch["token_ids"], batch["padding_mask"], batch["labels"]):
            ids = ids[: real.sum()]
            assert (batch["token_ids"] * (1 - batch["padding_mask"]) == 0).all()
            seen[task] += 1
            if task == 2:
                assert len(ids) <= 28 and both[tuple(ids)] == label[0]
                continue
            if len(ids) == 32:  # cut
                continue
            matches = [y for x, y in single.items() if _same_but_hidden(ids, x, tokenizer)]
            assert multi_tasks.LABELS[label[0]] in matches
            hidden += int((ids == tokenizer.mask_token_id).sum())
            tokens += len(ids) - 2
    assert min(seen.values()) > 20
    # 15 % in pairs, of which 80 % are masks; four standard deviations of about 1000 tokens
    assert 0.12 - 0.05 < hidden / tokens < 0.12 + 0.05


def _same_but_hidden(ids, original, tokenizer):
    if len(ids) != len(original):
        return False
    different = np.array(ids) != np.array(original)
    return different.mean() < 0.6 and not different[0] and not different[-1]


def test_heads_have_weights_of_their_own(run):
    variables = run._variables()
    paths = [v.path for v in run.pretrainer.weights] + [
        v.path for v in run.pretrainer.optimizer.variables
    ]
    assert len(variables) == len(paths)
    assert "model/task_1/logits/kernel" in variables and "model/task_2/logits/bias" in variables


# === Steps ===


def lamb():
    return OriginalLAMB(PiecewiseLinear(2e-2, {0: 1.0, 20: 0.5}), global_clipnorm=0.5)


def classifiers(backbone):
    return {
        name: roformer_tf.RoFormerTextClassifier(backbone, n, dropout=0.0, pooling=pooling)
        for name, n, pooling in (("three", 3, "cls"), ("two", 2, "mean"))
    }


def make_pretrainer(weights, slices=1, optimizer=lamb, models=classifiers):
    task = make_task(norm="rms_norm", activation="relu")
    pretrainer = MultiTaskPretrainer(task, models(task.backbone), slices=slices)
    if weights is not None:
        for variable, value in zip(pretrainer.trainable_variables, weights, strict=True):
            variable.assign(value)
    pretrainer.compile_for(optimizer())
    return pretrainer


def labelled(batch, task, rng):
    """A batch of the masked LM as one of a task."""
    size = len(batch["token_ids"])
    if task == 0:
        return {**batch, "task": np.zeros(size, "int32")}
    return {
        **batch,
        "task": np.full(size, task, "int32"),
        "mask_positions": np.zeros((size, 1), "int32"),
        "labels": rng.integers(0, 3 if task == 1 else 2, (size, 1)).astype("int32"),
        "label_weights": np.ones((size, 1), "float32"),
    }


@pytest.fixture(scope="module")
def data(seed):
    rng = np.random.default_rng([seed, 8])
    tasks = [0, 1, 2, 0, 2, 2]
    batches = [labelled(b, t, rng) for b, t in zip(make_batches(rng, len(tasks)), tasks)]
    shapes = [tuple(v.shape) for v in make_pretrainer(None).trainable_variables]
    return [rng.normal(0, 0.3, shape).astype("float32") for shape in shapes], batches


def fit(pretrainer, batches):
    signature = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in batches[0].items()}
    stream = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    stream = stream.repeat().with_options(options)
    return pretrainer.fit(stream, epochs=len(batches), steps_per_epoch=1, verbose=0).history


def trained(pretrainer):
    return [v.numpy() for v in pretrainer.trainable_variables]


@pytest.fixture(scope="module")
def reference(data):
    weights, batches = data
    pretrainer = make_pretrainer(weights)
    history = fit(pretrainer, batches)
    assert history["task"] == [0, 1, 2, 0, 2, 2]
    assert pretrainer.places == [(0, 3), (0, 1), (0, 5)]
    assert distance(trained(pretrainer), weights) > 1e-3
    return trained(pretrainer), history


@pytest.mark.parametrize(
    ("replicas", "slices"),
    [
        (1, 4),
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
def test_replicas_and_slices_change_nothing(data, reference, replicas, slices):
    weights, batches = data
    with choose_strategy(replicas).scope():
        pretrainer = make_pretrainer(weights, slices)
    history = fit(pretrainer, batches)
    for name in ("loss", "accuracy", "task", "tokens"):
        np.testing.assert_allclose(history[name], reference[1][name], rtol=2e-6, err_msg=name)
    assert distance(trained(pretrainer), reference[0]) < TOLERANCE


@pytest.mark.parametrize("task", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_is_that_of_the_model_of_the_task(data, task):
    """Of the task's own model by Keras, and the heads of the other tasks stay as they are."""
    weights, batches = data
    batch = next(b for b in batches if b["task"][0] == task)
    shared = make_pretrainer(weights)
    names = [v.path for v in shared.trainable_variables]
    fit(shared, [batch])
    mine = trained(shared)

    alone = make_pretrainer(weights)  # only to hold the same weights
    model = [alone.task, *alone.classifiers.values()][task]
    inputs = {n: batch[n] for n in ("token_ids", "segment_ids", "padding_mask")}
    if task == 0:
        own = Pretrainer(model)
        own.compile_for(lamb())
        own.train_step({k: tf.constant(v) for k, v in batch.items() if k != "task"})
    else:
        model.compile(optimizer=lamb())
        keras.Model.train_on_batch(model, inputs, batch["labels"][:, 0])
    moved = {id(v) for v in model.trainable_variables}
    for name, a, before, variable in zip(
        names, mine, weights, alone.trainable_variables, strict=True
    ):
        # a step of LAMB is 2 % of the norm of a weight; float32 sums in another order
        np.testing.assert_allclose(a, variable.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        if id(variable) in moved:
            assert abs(a - before).max() > 1e-4, name
        else:
            np.testing.assert_array_equal(a, before)


@pytest.mark.slow
def test_idle_heads_keep_their_moments(data):
    """A head that is not trained in a step neither decays nor forgets."""
    weights, batches = data
    pretrainer = make_pretrainer(weights)
    fit(pretrainer, batches[:2])  # the masked LM and task 1
    inner = pretrainer.optimizer.inner_optimizer
    index = inner._get_variable_index(pretrainer.classifiers["three"].logits_dense.kernel)
    slots = inner._momentums[index], inner._velocities[index]
    before = [slot.numpy() for slot in slots]
    assert all(abs(x).max() > 0 for x in before)
    fit(pretrainer, batches[2:3])  # task 2
    assert int(inner.iterations) == 3
    for slot, value in zip(slots, before):
        np.testing.assert_array_equal(slot, value)


@pytest.mark.slow
def test_xla_gives_the_same(data, reference):
    weights, batches = data
    pretrainer = make_pretrainer(weights, slices=2)
    pretrainer.xla = True
    fit(pretrainer, batches)
    assert distance(trained(pretrainer), reference[0]) < TOLERANCE


def test_classifiers_of_another_backbone_are_an_error():
    other = roformer_tf.RoFormerTextClassifier(make_task().backbone, 2, dropout=0.0)
    with pytest.raises(ValueError, match="backbone of the masked LM.*'other' with dropout=0.0"):
        MultiTaskPretrainer(make_task(), {"other": other})
    assert other.backbone.vocabulary_size == VOCABULARY_SIZE


# === Runs ===


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "run"
    result = train_tasks(settings_of(folder), output, verbose=False)
    assert result.completed
    return output, result


@pytest.mark.slow
def test_a_run_leaves_a_checkpoint_and_classifiers(whole):
    output, result = whole
    assert sorted(path.name for path in output.glob("*")) == [
        *("checkpoints", "held_out.csv", "held_out_tasks.csv", "log.csv", "settings.json"),
        *("stage-1-32", "stage-2-24", "tasks.csv", "tensorboard"),
    ]
    last = output / "stage-2-24"
    assert inspect_checkpoint(last).complete
    backbone = roformer_tf.RoFormerBackbone.from_preset(str(last))
    for a, b in zip(backbone.get_weights(), result.task.backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(str(last))
    assert masked_lm.backbone.norm == "rms_norm"
    texts = {"topics": ["".join(small_corpus.CHARACTERS[:9]), "天"]}
    texts["pairs"] = (texts["topics"], texts["topics"][::-1])
    for name, classifier in result.classifiers.items():
        loaded = roformer_tf.RoFormerTextClassifier.from_preset(str(last / "tasks" / name))
        expected = classifier.classify(texts[name])
        assert loaded.classify(texts[name]) == expected
        assert loaded.labels == (multi_tasks.LABELS if name == "topics" else ["0", "1"])
        assert loaded.preprocessor.pair_segments is False
    assert loaded.preprocessor.sequence_length == 28


@pytest.mark.slow
def test_logs_tell_the_tasks_apart(whole):
    log = rows(whole[0] / "tasks.csv")
    assert [int(row["step"]) for row in log] == list(range(1, 13))
    drawn = [int(task_of_step(tf.constant(i, tf.int64), 4, [2, 1, 1])) for i in range(12)]
    assert [row["task"] for row in log] == [("masked_lm", "topics", "pairs")[i] for i in drawn]
    for mine, other in zip(log, rows(whole[0] / "log.csv"), strict=True):
        assert mine["loss"] == other["loss"] and mine["accuracy"] == other["accuracy"]
    held_out = rows(whole[0] / "held_out_tasks.csv")
    assert [(row["stage"], row["task"]) for row in held_out] == [
        *(("1", "masked_lm"), ("1", "topics"), ("2", "masked_lm"), ("2", "topics"))
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in held_out)
    assert 5 < int(held_out[1]["predictions"]) < 30  # 20 % of 90, by their hashes


@pytest.mark.slow
def test_other_settings_are_an_error_for_the_same_folder(folder, whole):
    changed = settings_of(folder).with_values({"tasks.topics.frequency": 2})
    with pytest.raises(ValueError, match="tasks.topics.frequency was 1, is 2"):
        train_tasks(changed, whole[0], verbose=False)
    labels = {"tasks.pairs.labels": ["1", "0"]}
    with pytest.raises(ValueError, match="tasks.pairs.labels.*start in another folder.$"):
        train_tasks(settings_of(folder).with_values(labels), whole[0], False, allow_changes=True)


@pytest.mark.slow
def test_a_run_on_replicas_and_in_slices(folder, tmp_path):
    """The whole run: 2 replicas of 2 slices give the weights of one device."""
    model = {**multi_tasks.values(folder)["model"], "dropout": 0.0, "attention_dropout": 0.0}
    weights = []
    for replicas, run in ((1, {}), (2, {"micro_batch_size": 2})):
        settings = settings_of(folder, stages=SHORT, model=model, run=run)
        strategy = choose_strategy(replicas)
        result = train_tasks(settings, tmp_path / str(replicas), strategy, verbose=False)
        assert result.completed
        heads = [c.logits_dense.kernel for c in result.classifiers.values()]
        weights.append([*result.task.get_weights(), *(head.numpy() for head in heads)])
    assert distance(*weights) < TOLERANCE
    logs = [rows(tmp_path / name / "tasks.csv") for name in "12"]
    for mine, other in zip(*logs, strict=True):
        assert mine["task"] == other["task"]
        np.testing.assert_allclose(float(mine["loss"]), float(other["loss"]), rtol=1e-5)


def test_wrong_settings(folder, tmp_path, capsys):
    def error(changes=None, **tables):
        with pytest.raises(ValueError) as raised:
            settings_of(folder, **tables).with_values(changes or {})
        return str(raised.value)

    topics = multi_tasks.values(folder)["tasks"]["topics"]
    assert error({"tasks.topics.label_name": "x"}).startswith(
        "Unknown keys in [tasks.topics]: label_name. Known are files, text"
    )
    assert "[tasks.topics] `frequency` must be a number" in error({"tasks.topics.frequency": "x"})
    assert "[tasks.topics] `frequency`" in error({"tasks.topics.frequency": 0})
    assert "[tasks.topics] `text` must be a string" in error({"tasks.topics.text": 3})
    assert "[tasks.topics] `labels`" in error({"tasks.topics.labels": ["one"]})
    assert "differ from the others" in error({"tasks.topics.labels": ["a", "a"]})
    assert "[tasks.topics] `max_length`" in error({"tasks.topics.max_length": 7})
    assert "[tasks.topics] `pooling` must be one of" in error({"tasks.topics.pooling": "max"})
    assert "[tasks.topics] `files`" in error({"tasks.topics.files": []})
    assert "[data] `objective` must be one of 'masked_lm'" in error({"data.objective": "unilm"})
    assert "Name a setting as TABLE.KEY" in error({"tasks.nothing.text": "x"})
    assert "differ from masked_lm" in error(tasks={"masked_lm": topics})
    assert "lacks label" in error(
        tasks={"topics": {k: v for k, v in topics.items() if k != "label"}}
    )
    values = {**multi_tasks.values(folder), "tasks": {}}
    with pytest.raises(ValueError, match="There must be at least one task"):
        MultiTaskSettings.from_dict(values)
    with pytest.raises(ValueError, match="Write each task as a table"):
        MultiTaskSettings.from_dict({**values, "tasks": {"a": 1}})
    path = multi_tasks.write_toml(tmp_path / "settings.toml", values)
    assert main(["train-tasks", str(path), "--output", str(tmp_path / "run")]) == 2
    assert "There must be at least one task" in capsys.readouterr().err


def test_plan(folder, tmp_path, capsys):
    path = multi_tasks.write_toml(tmp_path / "settings.toml", multi_tasks.values(folder))
    assert main(["plan", str(path), "--gpus", "2", "--memory", "1GB"]) == 0
    assert "Fits: every stage" in capsys.readouterr().out


def test_too_few_examples(folder, tmp_path):
    settings = settings_of(folder).with_values({"tasks.pairs.batch_size": 3})
    with pytest.raises(ValueError, match="tasks.pairs.*multiple of the number of replicas, 2"):
        train_tasks(settings, tmp_path / "run", choose_strategy(2), verbose=False)
    settings = settings_of(folder).with_values({"tasks.pairs.batch_size": 100_000})
    with pytest.raises(ValueError, match="The task pairs has 90 examples, far too few for 3"):
        train_tasks(settings, tmp_path / "run", verbose=False)


@pytest.mark.slow
def test_a_task_is_learned(tmp_path):
    """Texts that begin with one of two characters, and their label."""
    rng = np.random.default_rng(0)
    multi_tasks.write(tmp_path)
    table = "sentence\tlabel\n"
    for _ in range(400):
        first = rng.choice(small_corpus.CHARACTERS[:2])
        rest = "".join(rng.choice(small_corpus.CHARACTERS[2:], size=6))
        table += f"{first}{rest}\t{'少' if first == small_corpus.CHARACTERS[0] else '多'}\n"
    (tmp_path / "topics.tsv").write_text(table, encoding="utf-8")
    stages = [{**SHORT[0], "steps": 160, "learning_rate": 2e-2}]
    settings = settings_of(tmp_path, stages=stages).with_values({"tasks.topics.mask_rate": 0.0})
    result = train_tasks(settings, tmp_path / "run", verbose=False)
    held_out = {row["task"]: row for row in rows(tmp_path / "run" / "held_out_tasks.csv")}
    assert float(held_out["topics"]["accuracy"]) > 0.95
    texts = [small_corpus.CHARACTERS[i] + "".join(small_corpus.CHARACTERS[9:14]) for i in (0, 1)]
    answers = result.classifiers["topics"].classify(texts, top_k=1)
    assert [best for ((best, _),) in answers] == ["少", "多"]


def kill_and_resume(path, tmp_path, after):
    """Kills a run after so many steps, and lets it end; it must leave what another leaves whole."""
    log, output, whole = tmp_path / "messages.log", tmp_path / "run", tmp_path / "whole"

    def begin(output):
        return run_processes.start(path, output, log=log, command="train-tasks")

    assert run_processes.finish(begin(whole)) == 0, log.read_text()
    for steps in after:
        process = begin(output)
        assert run_processes.wait_for(
            lambda steps=steps: run_processes.num_logged_steps(output) >= steps, process
        )
        assert run_processes.kill(process)
    assert run_processes.finish(begin(output)) == 0, log.read_text()
    mine, other = run_processes.variables(output), run_processes.variables(whole)
    assert sorted(mine) == sorted(other)
    assert [name for name in other if not np.array_equal(mine[name], other[name])] == []
    for name in ("tasks.csv", "held_out_tasks.csv"):
        assert (output / name).read_text() == (whole / name).read_text()
    return output, whole


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(folder, tmp_path):
    """`kill -9` in the first and in the second stage, then to the end."""
    stages = [{**stage, "steps": 12} for stage in multi_tasks.STAGES]
    model = {"dropout": 0.1, "attention_dropout": 0.1}
    values = multi_tasks.values(
        folder, stages=stages, model={**multi_tasks.values(folder)["model"], **model}
    )
    values["run"] |= {"deterministic": True, "checkpoint_every": 2}
    path = multi_tasks.write_toml(tmp_path / "settings.toml", values)
    output, whole = kill_and_resume(path, tmp_path, after=(3, 15))
    for name in ("topics", "pairs"):
        task = f"stage-2-24/tasks/{name}/task.weights.h5"
        assert (output / task).exists() and (whole / task).exists()


# === Examples and pages ===


def test_the_settings_of_the_example(repository):
    settings = MultiTaskSettings.from_file(repository / "examples" / "train_tasks.toml")
    assert settings.names == ("masked_lm", "iflytek", "tnews", "ocnli")
    assert settings.frequencies == (60, 2, 5, 4)
    assert [len(task.labels) for task in settings.tasks.values()] == [119, 15, 3]
    assert settings.tasks["ocnli"].files == (
        str(repository / "examples" / "ocnli_public" / "train.50k.json"),
    )
    factors = {step * 8: x for step, x in settings.stages[0].learning_rate_factors.items()}
    assert factors == {32000: 1, 320000: 0.5, 1280000: 0.1, 2560000: 0.01}


@pytest.mark.slow
def test_the_page_runs(repository, tmp_path, monkeypatch):
    text = (repository / "docs" / "multi_task_training.md").read_text(encoding="utf-8")
    (tmp_path / "checkpoints").symlink_to(repository / "checkpoints")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "multi_task_training.md", "exec"), names)
    assert names["best"] == names["result"].classifiers["reviews"].classify("房间干净")[0]
    assert names["best"][0] == "good" and names["best"][1] > 0.9
