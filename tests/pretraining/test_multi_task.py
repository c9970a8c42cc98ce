"""Multi-task runs: what they leave, what they learn, and that a stop changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.pretraining import MultiTaskSettings, choose_strategy, train_tasks
from roformer_tf.pretraining.multi_task_run import task_of_step
from tests.layers.harness import assert_equal
from tests.pretraining import multi_tasks, readings, run_processes, small_corpus
from tests.pretraining.builders import (
    TOLERANCE,
    determinism_ends,
    distance,
    rows,
    write_toml,
)

ALL = ("topics", "pairs", "webqa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return multi_tasks.write(tmp_path_factory.mktemp("tasks"))


def settings_of(folder):
    """Of a run whose steps draw dropout, and whose bits do not depend on its threads."""
    stages = [{**stage, "steps": 12} for stage in multi_tasks.STAGES]
    model = {"dropout": 0.1, "attention_dropout": 0.1}
    run = {"deterministic": True, "checkpoint_every": 2}
    return multi_tasks.values(folder, ALL, stages, model=model, run=run)


@determinism_ends()
def train_here(folder, output):
    """Trains to the end in this process."""
    settings = MultiTaskSettings.from_dict(settings_of(folder))
    result = train_tasks(settings, output, verbose=False)
    assert result.completed
    return result


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "run"
    return output, train_here(folder, output)


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
    assert_equal(backbone.get_weights(), result.task.backbone.get_weights())
    masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(str(last))
    assert masked_lm.backbone.norm == "rms_norm"
    texts = {"topics": ["".join(small_corpus.CHARACTERS[:9]), "天"]}
    texts["pairs"] = (texts["topics"], texts["topics"][::-1])
    for name in ("topics", "pairs"):
        loaded = roformer_tf.RoFormerTextClassifier.from_preset(str(last / "tasks" / name))
        expected = result.classifiers[name].classify(texts[name])
        assert loaded.classify(texts[name]) == expected
        assert loaded.labels == (multi_tasks.LABELS if name == "topics" else ["0", "1"])
        assert loaded.preprocessor.pair_segments is False
    assert loaded.preprocessor.sequence_length == 28


@pytest.mark.slow
def test_logs_tell_the_tasks_apart(whole):
    log = rows(whole[0] / "tasks.csv")
    assert [int(row["step"]) for row in log] == list(range(1, 25))
    drawn = [int(task_of_step(tf.constant(i, tf.int64), 4, [2, 1, 1, 2])) for i in range(24)]
    assert [row["task"] for row in log] == [("masked_lm", *ALL)[i] for i in drawn]
    for mine, other in zip(log, rows(whole[0] / "log.csv"), strict=True):
        assert mine["loss"] == other["loss"] and mine["accuracy"] == other["accuracy"]
    held_out = rows(whole[0] / "held_out_tasks.csv")
    assert [(row["stage"], row["task"]) for row in held_out] == [
        (stage, task) for stage in "12" for task in ("masked_lm", "topics", "webqa")
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in held_out)
    assert 5 < int(held_out[1]["predictions"]) < 30  # 20 % of 90, by their hashes


@pytest.mark.slow
def test_other_settings_are_an_error_for_the_same_folder(folder, whole):
    settings = MultiTaskSettings.from_dict(settings_of(folder)).with_values(
        {"run.deterministic": False}  # which may change
    )
    changed = settings.with_values({"tasks.topics.frequency": 2})
    with pytest.raises(ValueError, match="tasks.topics.frequency was 1, is 2"):
        train_tasks(changed, whole[0], verbose=False)
    changed = settings.with_values({"tasks.pairs.labels": ["1", "0"]})
    with pytest.raises(ValueError, match="tasks.pairs.labels.*start in another folder.$"):
        train_tasks(changed, whole[0], verbose=False, allow_changes=True)


@pytest.mark.slow
def test_a_run_on_replicas_and_in_slices(folder, tmp_path):
    """The whole run: 2 replicas of 2 slices give the weights of one device."""
    model = {"dropout": 0.0, "attention_dropout": 0.0}
    stages = [{**multi_tasks.STAGES[0], "steps": 12}]  # in which each task is drawn
    weights = []
    trained_only = dict.fromkeys(
        ("data.held_out", "tasks.topics.held_out", "tasks.webqa.held_out"), 0.0
    )
    for replicas, run in ((1, {}), (2, {"micro_batch_size": 2})):
        settings = multi_tasks.settings(folder, ALL, stages, model=model, run=run)
        settings = settings.with_values(trained_only)
        strategy = choose_strategy(replicas)
        result = train_tasks(settings, tmp_path / str(replicas), strategy, verbose=False)
        assert result.completed
        models = [result.task, *result.classifiers.values()]
        different = {id(weight): weight for model in models for weight in model.weights}
        weights.append([weight.numpy() for weight in different.values()])
    assert distance(*weights) < TOLERANCE
    logs = [rows(tmp_path / name / "tasks.csv") for name in "12"]
    assert {row["task"] for row in logs[0]} == {"masked_lm", *ALL}
    for mine, other in zip(*logs, strict=True):
        assert mine["task"] == other["task"]
        np.testing.assert_allclose(float(mine["loss"]), float(other["loss"]), rtol=1e-5)


def test_too_few_examples(folder, tmp_path):
    settings = multi_tasks.settings(folder).with_values({"tasks.pairs.batch_size": 3})
    with pytest.raises(ValueError, match="tasks.pairs.*multiple of the number of replicas, 2"):
        train_tasks(settings, tmp_path / "run", choose_strategy(2), verbose=False)
    settings = multi_tasks.settings(folder).with_values({"tasks.pairs.batch_size": 100_000})
    with pytest.raises(ValueError, match="The task pairs has 90 examples, far too few for 3"):
        train_tasks(settings, tmp_path / "run", verbose=False)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that learns two tasks in two stages: to find answers, and to classify texts.

    The texts begin with one of two characters, which decides their label.
    """
    folder = multi_tasks.write(tmp_path_factory.mktemp("learned"))
    readings.write(folder, count=600)
    rng = np.random.default_rng(0)
    table = "sentence\tlabel\n"
    for _ in range(400):
        first = rng.choice(small_corpus.CHARACTERS[:2])
        rest = "".join(rng.choice(small_corpus.CHARACTERS[2:], size=6))
        table += f"{first}{rest}\t{'少' if first == small_corpus.CHARACTERS[0] else '多'}\n"
    (folder / "topics.tsv").write_text(table, encoding="utf-8")
    first, second = multi_tasks.STAGES
    stages = [{**first, "steps": 360, "learning_rate": 2e-2}, {**second, "steps": 80}]
    settings = multi_tasks.settings(folder, ["topics", "webqa"], stages).with_values(
        {
            **{"data.frequency": 1, "tasks.topics.frequency": 3, "tasks.webqa.frequency": 8},
            **{"tasks.topics.mask_rate": 0.0, "tasks.webqa.mask_rate": 0.05},
        }
    )
    result = train_tasks(settings, folder / "run", verbose=False)
    assert result.completed
    held_out = rows(folder / "run" / "held_out_tasks.csv")
    return folder / "run", result, {(row["stage"], row["task"]): row for row in held_out}


@pytest.mark.slow
def test_a_task_is_learned(learned):
    _, result, held_out = learned
    assert float(held_out["2", "topics"]["accuracy"]) > 0.95
    texts = [small_corpus.CHARACTERS[i] + "".join(small_corpus.CHARACTERS[9:14]) for i in (0, 1)]
    answers = result.classifiers["topics"].classify(texts, top_k=1)
    assert [best for ((best, _),) in answers] == ["少", "多"]


@pytest.mark.slow
def test_reading_is_learned_and_its_preset_answers(learned):
    run, result, held_out = learned
    assert float(held_out["2", "webqa"]["accuracy"]) > 0.9
    assert float(held_out["2", "webqa"]["loss"]) < 0.5
    assert int(held_out["1", "webqa"]["predictions"]) > 20
    task = run / "stage-2-24" / "tasks" / "webqa"
    reader = roformer_tf.RoFormerQuestionAnswering.from_preset(str(task))
    assert reader.head == "joint" and reader.dropout == 0.0
    assert reader.preprocessor.pair_segments is False
    rng = np.random.default_rng(1)
    text = "".join(rng.choice(small_corpus.CHARACTERS[3:-2], size=900))
    # also beyond the first chunk of `max_length` tokens, and behind what is no token
    contexts = [
        f"\u200b {text[:9]}{readings.ANSWER}{text[9:20]}",
        f"{text[:700]}{readings.ANSWER}{text[700:]}",
    ]
    contexts += [text[:20]]
    x = {"question": [readings.QUESTION] * 3, "context": contexts}
    answers = reader.predict(x, verbose=0, no_answer=True)
    assert answers == result.classifiers["webqa"].predict(x, verbose=0, no_answer=True)
    # the probability of no answer is the least of all chunks, so the long one has an answer
    assert [answer[:3] for (answer,) in answers] == [
        *((11, 13, readings.ANSWER), (700, 702, readings.ANSWER), (0, 0, "")),
    ]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(folder, whole, tmp_path):
    """`kill -9` in the first and in the second stage, then to the end, as a run of one process."""
    path = write_toml(tmp_path / "settings.toml", settings_of(folder))
    log, output, whole = tmp_path / "messages.log", tmp_path / "run", whole[0]
    for steps in (3, 15):
        process = run_processes.start(path, output, log=log, command="train-tasks")
        assert run_processes.wait_for(
            lambda steps=steps: run_processes.num_logged_steps(output) >= steps, process
        ), log.read_text()
        assert run_processes.kill(process)
    train_here(folder, output)
    mine, other = run_processes.variables(output), run_processes.variables(whole)
    assert sorted(mine) == sorted(other)
    assert [name for name in other if not np.array_equal(mine[name], other[name])] == []
    for name in ("tasks.csv", "held_out_tasks.csv"):
        assert (output / name).read_text() == (whole / name).read_text()
    assert {row["task"] for row in rows(whole / "tasks.csv")} == {"masked_lm", *ALL}
    for name in ALL:
        task = f"stage-2-24/tasks/{name}/task.weights.h5"
        assert (output / task).exists() and (whole / task).exists()
