"""Fine-tunes a model on a task of CLUE as the scripts of RoFormer v2 do, and writes what CLUE's server takes.

    python examples/clue.py afqmc --data afqmc_public
    python examples/clue.py cluener --data cluener_public --model chinese_roformer-v2-char_L-12_H-768_A-12

The optimizer, rate, lengths, batches and epochs are the scripts'. The weights of the best epoch on the development set
are kept. The folder is that of the task's .zip file at https://www.cluebenchmarks.com.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import dataclasses
import functools
import json
from pathlib import Path

import clue_data
import numpy as np

from roformer_tf import (
    RoFormerMultipleChoice,
    RoFormerQuestionAnswering,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_tf.models import AnswerMetrics, choice_accuracy, entity_f1, reading_scores
from roformer_tf.optimizers import OriginalAdaFactor

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"
FILES = {"train": ["train.json"], "dev": ["dev.json"], "test": ["test.json"]}


@dataclasses.dataclass
class Task:
    """How a task is read and trained: the model's class and arguments, its files, and the file to write."""

    cls: type
    options: dict
    read: object  # function of the paths of a part, and of whether it has labels
    answers: str
    files: dict = dataclasses.field(default_factory=FILES.copy)
    batch_size: int = 32
    epochs: int = 10
    accumulation: int = 1  # batches of a step


def classes(text, answers, epochs=10, **files):
    read = functools.partial(clue_data.read_classes, text=text)
    options = {"sequence_length": 128, "pooling": "cls"}
    return Task(RoFormerTextClassifier, options, read, answers, {**FILES, **files}, epochs=epochs)


NEWER_TEST = {"test": ["test1.1.json"]}
TASKS = {
    "afqmc": classes(clue_data.pair, "afqmc_predict.json"),
    "cmnli": classes(clue_data.pair, "cmnli_predict.json"),
    "ocnli": classes(clue_data.pair, "ocnli_50k_predict.json", train=["train.50k.json"]),
    "csl": classes(clue_data.abstract_and_keywords, "csl_predict.json"),
    "iflytek": classes(clue_data.sentence, "iflytek_predict.json"),
    "tnews": classes(clue_data.sentence, "tnews11_predict.json", **NEWER_TEST),
    "wsc": classes(clue_data.marked_mentions, "cluewsc11_predict.json", epochs=30, **NEWER_TEST),
    "cluener": Task(
        RoFormerTokenClassifier,
        {"head": "efficient_global_pointer", "sequence_length": 256},
        clue_data.read_entities,
        "cluener_predict.json",
    ),
    "cmrc2018": Task(
        RoFormerQuestionAnswering,
        {"sequence_length": 512, "stride": 128},
        clue_data.read_questions,
        "cmrc2018_predict.json",
        batch_size=16,
        accumulation=2,
    ),
    "c3": Task(
        RoFormerMultipleChoice,
        {"sequence_length": 512},
        clue_data.read_choices,
        "c311_predict.json",
        {part: [f"m-{part}.json", f"d-{part}.json"] for part in ("train", "dev")} | NEWER_TEST,
        batch_size=4,
        accumulation=4,
    ),
    "chid": Task(
        RoFormerMultipleChoice,
        {"sequence_length": 64},
        clue_data.read_gaps,
        "chid11_predict.json",
        {part: [f"{part}.json", f"{part}_answer.json"] for part in ("train", "dev")} | NEWER_TEST,
        batch_size=12,
        epochs=5,
        accumulation=2,
    ),
}


def prepare(cls, labels):
    """Returns arguments of the class from the labels, and what `fit` and the score take for them."""
    if cls is RoFormerTextClassifier:
        return {"labels": sorted(set(labels))}, lambda y: y, None
    if cls is RoFormerTokenClassifier:
        kinds = sorted({kind for row in labels for *_, kind in row})
        return {"labels": kinds}, lambda y: y, entity_f1
    if cls is RoFormerQuestionAnswering:

        def score(y, answers):
            return reading_scores([[text for _, text in row] for row in y], answers)

        return {}, lambda y: [(s, s + len(t)) for (s, t), *_ in y], score
    return {}, lambda y: y, choice_accuracy


def write_answers(name, model, path, x, ids):
    """Writes the answers to the test part."""
    answers = model.predict(x, verbose=0)
    if isinstance(model, RoFormerTextClassifier):
        names = [model.labels[i] for i in answers.argmax(-1)]
        clue_data.write_classes(path, ids, names)
    elif isinstance(model, RoFormerTokenClassifier):
        clue_data.write_entities(path, ids, x, answers)
    elif isinstance(model, RoFormerQuestionAnswering):
        found = {i: row[0][2] if row else "" for i, row in zip(ids, answers)}
        path.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    elif name == "c3":
        clue_data.write_classes(path, ids, [row[0][0] for row in answers])
    else:
        shares = np.array([[share for _, _, share in sorted(row)] for row in answers])
        path.write_text(json.dumps(clue_data.assign_gaps(ids, shares)), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", required=True, type=Path, help="folder of the task's files")
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--output", default=Path("output/clue"), type=Path)
    parser.add_argument("--epochs", type=int, help="other than the script's")
    args = parser.parse_args()

    task = TASKS[args.task]
    (x, y, _), (dev_x, dev_y, _), (test_x, _, ids) = (
        task.read([args.data / name for name in task.files[part]], part != "test")
        for part in ("train", "dev", "test")
    )
    own, labels_of, score = prepare(task.cls, y)
    options = {"dropout": 0.0, "word_level": False, **task.options, **own}
    if task.cls is not RoFormerTokenClassifier:
        options["pair_segments"] = False
    model = task.cls.from_preset(args.model, **options)
    if score is None:
        right = np.array([model.labels.index(label) for label in dev_y])

        def score(y, logits):
            return {"accuracy": float((logits.argmax(-1) == right).mean())}

    optimizer = OriginalAdaFactor(
        5e-4, beta_1=0.9, min_dim_size_to_factor=10**6, accumulation_steps=task.accumulation
    )
    model.compile(optimizer)
    best = AnswerMetrics(dev_x, dev_y, score)
    epochs = args.epochs or task.epochs
    model.fit(x, labels_of(y), batch_size=task.batch_size, epochs=epochs, callbacks=[best])
    print(f"best on the development set: {best.best:.4f}, in epoch {best.best_epoch + 1}")
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / task.answers
    write_answers(args.task, model, path, test_x, ids)
    print(path)


if __name__ == "__main__":
    main()
