"""The experiment on every task, on made-up examples in the form of the real datasets."""

import json
import lzma

import numpy as np
import pytest

from roformer_tf.checkpoint import save_checkpoint
from tests.examples.conftest import write_lines
from tests.models import builders

STARTS = {  # of each task; the network of a task is the same from both
    "ner_weibo": ("pretrained",),
    "cmrc": ("random",),
    "c3": ("pretrained",),
    "ocnli": ("pretrained", "random"),
}
TASKS = tuple(STARTS)
CHARACTERS = [chr(0x4E00 + i) for i in range(200)]
VOCABULARY = [*builders.SPECIAL, "，", "。", *CHARACTERS]
COUNT = 6


def example(rng, task):
    """One line of a dataset."""

    def text(length):
        return "".join(rng.choice(CHARACTERS, length))

    if task == "ner_weibo":
        return {"text": text(20), "entities": [(2, 4, "PER"), (7, 10, "LOC")]}
    if task == "cmrc":
        context = f"{text(8)}，{text(9)}。"
        question = {"question": text(5), "answers": [(9, context[9:12]), (10, context[10:12])]}
        return {"context": context, "questions": [question]}
    if task == "c3":
        choices = [text(3) for _ in range(rng.integers(2, 5))]
        question = {"question": text(5), "choices": choices, "answer": 1}
        return {"document": [text(9), text(7)], "questions": [question]}
    return {"sentence1": text(8), "sentence2": text(6), "label": str(rng.choice(["yes", "no"]))}


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(3)
    for task in TASKS:
        for part in ("train", "valid"):
            path = tmp_path / "data" / f"zh_{task.replace('cmrc', 'cmrc2018')}" / f"{part}.jsonl.xz"
            write_lines(path, [example(rng, task) for _ in range(COUNT)])
    return tmp_path / "data"


@pytest.fixture
def model(tmp_path):
    backbone = builders.backbone(vocabulary_size=len(VOCABULARY), num_layers=1)
    return save_checkpoint(backbone, tmp_path / "small", vocabulary=VOCABULARY)


@pytest.mark.slow
def test_tasks_are_trained_scored_and_served(call, data, model, tmp_path, caplog):
    results = tmp_path / "runs.jsonl"
    arguments = ("--data", data, "--model", model, "--results", results, "--seeds", 0)
    for task, starts in STARTS.items():
        chosen = ("--starts", *starts) if len(starts) == 1 else ()  # both are the default
        call("finetune_tasks", *arguments, "--tasks", task, "--set", "epochs=1", *chosen)
    runs = map(json.loads, results.read_text("utf-8").splitlines())
    runs = {run["name"]: run["result"] for run in runs}
    assert len(runs) == len(TASKS) + sum(map(len, STARTS.values()))  # and the rivals of each
    for task in TASKS:
        for start in STARTS[task]:
            run = runs[f"{task}-small-{start}-0"]
            assert run["trained_on"] == run["measured_on"] == run["served_alike"] == COUNT
            assert 0 <= run["best"] <= 1 and np.isfinite(run["scores"]["loss"])
    text = lzma.decompress((data / "zh_c3" / "valid.jsonl.xz").read_bytes())
    rows = map(json.loads, text.splitlines())
    chance = np.mean([1 / len(q["choices"]) for row in rows for q in row["questions"]])
    assert runs["c3-small-rivals"]["rivals"]["chance"] == pytest.approx(chance)
    report = results.with_suffix(".md").read_text("utf-8")
    assert all(f"| {task}, " in report for task in TASKS)
    assert "retracing" not in caplog.text
