"""Fine-tunes a model on a task of CLUE as the scripts of RoFormer v2 do, and writes what CLUE's server takes.

    python examples/clue.py afqmc --data afqmc_public
    python examples/clue.py cluener --data cluener_public --model chinese_roformer-v2-char_L-12_H-768_A-12

The optimizer, rate, lengths, batches and epochs are the scripts'. The weights of the best epoch on the development set
are kept. The folder is that of the task's .zip file at https://www.cluebenchmarks.com.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
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
FILES = {"train": "train.json", "dev": "dev.json", "test": "test.json"}
CLASSES = {"sequence_length": 128, "pooling": "cls"}
ENTITIES = {"head": "efficient_global_pointer", "sequence_length": 256}


def classes(text, output, epochs=10, accumulation=1, **files):
    read = functools.partial(clue_data.read_classes, text=text, files={**FILES, **files})
    return RoFormerTextClassifier, CLASSES, read, output, 32, epochs, accumulation


# class, its arguments, reader, file to write, batch size, epochs, steps of accumulation
TASKS = {
    "afqmc": classes(clue_data.pair, "afqmc_predict.json"),
    "cmnli": classes(clue_data.pair, "cmnli_predict.json"),
    "ocnli": classes(clue_data.pair, "ocnli_50k_predict.json", train="train.50k.json"),
    "csl": classes(clue_data.abstract_and_keywords, "csl_predict.json"),
    "iflytek": classes(lambda row: row["sentence"], "iflytek_predict.json"),
    "tnews": classes(lambda row: row["sentence"], "tnews11_predict.json", test="test1.1.json"),
    "wsc": classes(clue_data.marked_mentions, "cluewsc11_predict.json", 30, test="test1.1.json"),
    "cluener": (
        *(RoFormerTokenClassifier, ENTITIES),
        *(functools.partial(clue_data.read_entities, files=FILES), "cluener_predict.json", 32, 10, 1),
    ),
    "cmrc2018": (
        *(RoFormerQuestionAnswering, {"sequence_length": 512, "stride": 128}),
        *(functools.partial(clue_data.read_questions, files=FILES), "cmrc2018_predict.json", 16, 10, 2),
    ),
    "c3": (
        *(RoFormerMultipleChoice, {"sequence_length": 512}),
        functools.partial(
            clue_data.read_choices,
            files={
                "train": ("m-train.json", "d-train.json"),
                "dev": ("m-dev.json", "d-dev.json"),
                "test": ("test1.1.json",),
            },
        ),
        *("c311_predict.json", 4, 10, 4),
    ),
    "chid": (
        *(RoFormerMultipleChoice, {"sequence_length": 64}),
        functools.partial(
            clue_data.read_gaps,
            files={
                "train": ("train.json", "train_answer.json"),
                "dev": ("dev.json", "dev_answer.json"),
                "test": ("test1.1.json",),
            },
        ),
        *("chid11_predict.json", 12, 5, 2),
    ),
}  # fmt: skip


def prepare(cls, labels):
    """Returns arguments of the class from the labels, and what `fit` and the score take for them."""
    if cls is RoFormerTextClassifier:
        return {"labels": sorted(set(labels))}, lambda y: y, None
    if cls is RoFormerTokenClassifier:
        kinds = sorted({kind for row in labels for *_, kind in row})
        return {"labels": kinds}, lambda y: y, entity_f1
    if cls is RoFormerQuestionAnswering:
        texts = lambda y, answers: reading_scores([[t for _, t in row] for row in y], answers)  # noqa: E731
        return {}, lambda y: [(s, s + len(t)) for (s, t), *_ in y], texts
    return {}, lambda y: y, choice_accuracy


def write_answers(task, model, path, x, ids):
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
    elif task == "c3":
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

    cls, options, read, file, batch_size, epochs, accumulation = TASKS[args.task]
    (x, y, _), (dev_x, dev_y, _), (test_x, _, ids) = (
        read(args.data, part) for part in ("train", "dev", "test")
    )
    own, labels_of, score = prepare(cls, y)
    pairs = {} if cls is RoFormerTokenClassifier else {"pair_segments": False}
    model = cls.from_preset(args.model, dropout=0.0, word_level=False, **options, **own, **pairs)
    if score is None:
        right = np.array([model.labels.index(label) for label in dev_y])

        def score(y, logits):
            return {"accuracy": float((logits.argmax(-1) == right).mean())}

    model.compile(
        OriginalAdaFactor(
            5e-4, beta_1=0.9, min_dim_size_to_factor=10**6, accumulation_steps=accumulation
        )
    )
    best = AnswerMetrics(dev_x, dev_y, score)
    model.fit(
        x, labels_of(y), batch_size=batch_size, epochs=args.epochs or epochs, callbacks=[best]
    )
    print(f"best on the development set: {best.best:.4f}, in epoch {best.best_epoch + 1}")
    args.output.mkdir(parents=True, exist_ok=True)
    write_answers(args.task, model, args.output / file, test_x, ids)
    print(args.output / file)


if __name__ == "__main__":
    main()
