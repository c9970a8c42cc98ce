"""The settings of a multi-task run: what they must be, those of the example, their plan."""

import tomllib

import pytest

from roformer_tf.__main__ import main
from roformer_tf.pretraining import MultiTaskSettings, ReadingTaskSettings, train_tasks
from roformer_tf.pretraining.multi_task_settings import make_task_settings
from tests.pretraining import multi_tasks
from tests.pretraining.builders import write_toml


def test_wrong_settings(tmp_path, capsys):
    def error(changes=None, **tables):
        with pytest.raises(ValueError) as raised:
            multi_tasks.settings(tmp_path, **tables).with_values(changes or {})
        return str(raised.value)

    topics = multi_tasks.values(tmp_path)["tasks"]["topics"]
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
    values = {**multi_tasks.values(tmp_path), "tasks": {}}
    with pytest.raises(ValueError, match="There must be at least one task"):
        MultiTaskSettings.from_dict(values)
    with pytest.raises(ValueError, match="Write each task as a table"):
        MultiTaskSettings.from_dict({**values, "tasks": {"a": 1}})
    path = write_toml(tmp_path / "settings.toml", values)
    assert main(["train-tasks", str(path), "--output", str(tmp_path / "run")]) == 2
    assert "There must be at least one task" in capsys.readouterr().err


def test_keys_tell_the_kind_of_a_task(tmp_path):
    made = multi_tasks.values(tmp_path, names=["webqa"])
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
    folder = multi_tasks.write(tmp_path)
    with pytest.raises(ValueError, match=r"Expected text files .jsonl or .json.*topics.tsv"):
        changes = {"tasks.webqa.files": [str(folder / "topics.tsv")]}
        train_tasks(settings.with_values(changes), folder / "none", verbose=False)


def test_plan(tmp_path, capsys):
    values = multi_tasks.values(multi_tasks.write(tmp_path))
    path = write_toml(tmp_path / "settings.toml", values)
    assert main(["plan", str(path), "--gpus", "2", "--memory", "1GB"]) == 0
    assert "Fits: every stage" in capsys.readouterr().out


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


def test_reading_in_the_example(repository):
    """Its reading task is a comment: CLUE has no such file."""
    text = (repository / "examples" / "train_tasks.toml").read_text(encoding="utf-8")
    block = text[text.index("# [tasks.webqa]") :].split("\n\n")[0]
    table = tomllib.loads("\n".join(line.removeprefix("# ") for line in block.splitlines()))
    task = make_task_settings("webqa", table["tasks"]["webqa"])
    assert (task.max_length, task.chunk_step, task.mask_rate) == (512, 128, 0.15)
    assert (task.question, task.context, task.answers) == ("question", "passage", "answers")
