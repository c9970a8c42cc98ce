"""Fine-tunes every task head on real Chinese data, beside random weights and the simplest rivals.

    python experiments/finetune_tasks.py
    python experiments/finetune_tasks.py --tasks ner_msra cmrc --set max_examples=500
    python experiments/finetune_tasks.py --report

Entities (MSRA, Weibo), reading (CMRC 2018), choices (C3), pairs (OCNLI) and classes (IFLYTEK, ChnSentiCorp). Each head
is trained on the small model that comes with the repository, and on the same model with random weights.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import functools
import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import experiment
import keras
import numpy as np
import tensorflow as tf
from experiment import ROOT, Results, markdown_table, mean_and_spread

from roformer_tf import (
    RoFormerMultipleChoice,
    RoFormerQuestionAnswering,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_tf.export import export_saved_model
from roformer_tf.models import AnswerMetrics, choice_accuracy, entity_f1, reading_scores
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay

TINY = ROOT / "checkpoints" / "chinese_roformer_tiny"
SETTINGS = {
    "max_examples": 3000,
    "learning_rate": 5e-4,
    "batch_size": 16,
    "epochs": 6,
    "dtype": "float32",
}
STARTS = ("pretrained", "random")
SERVED = 64  # examples that are given to the exported SavedModel too
CHANGES = {  # what differs from these, for each task
    "ner_weibo": {"epochs": 12},
    "cmrc": {"epochs": 4, "batch_size": 8},
    "c3": {"epochs": 2, "batch_size": 4},
    "iflytek": {"epochs": 4},
    "chnsenticorp": {"epochs": 3},
}


def read(args, name, part):
    """Reads a part of a dataset, JSON lines or a table, as a list of dicts."""
    folder = experiment.existing(Path(args.data) / name)
    path = folder / f"{part}.jsonl.xz"
    if path.exists():
        return experiment.read_lines(path)
    return experiment.read_table(folder / f"{part}.tsv.xz")


# === The tasks: examples as (x, y), y for the scores, class and arguments, score, rivals ===


def entities(name):
    def load(args, part):
        rows = read(args, name, part)
        return [row["text"] for row in rows], [list(map(tuple, row["entities"])) for row in rows]

    def rivals(train, test):
        """Marks what was an entity in training, the longest first."""
        seen = {}
        for text, row in zip(*train):
            for start, end, kind in row:
                seen.setdefault(text[start:end], Counter())[kind] += 1
        longest = max(map(len, seen))

        def mark(text):
            found, position = [], 0
            while position < len(text):
                for end in range(min(position + longest, len(text)), position, -1):
                    if text[position:end] in seen:
                        kind = seen[text[position:end]].most_common(1)[0][0]
                        found.append((position, end, kind))
                        position = end - 1
                        break
                position += 1
            return found

        return {"entities seen in training": entity_f1(test[1], map(mark, test[0]))["f1"]}

    def options(train):
        return {"labels": sorted({kind for row in train[1] for *_, kind in row})}

    return {
        "load": load,
        "cls": RoFormerTokenClassifier,
        "options": options,
        "arguments": {"word_level": False, "sequence_length": 256, "stride": 64},
        "labels": lambda y: y,
        "score": entity_f1,
        "rivals": rivals,
    }


def load_reading(args, part):
    rows = [
        (row["context"], q) for row in read(args, "zh_cmrc2018", part) for q in row["questions"]
    ]
    x = {"question": [q["question"] for _, q in rows], "context": [context for context, _ in rows]}
    return x, [q["answers"] for _, q in rows]


def overlapping_clause(train, test):
    """Answers with the clause that shares most pairs of characters with the question."""
    x, y = test

    def pairs(text):
        return {text[i : i + 2] for i in range(len(text) - 1)}

    def answer(question, context):
        clauses = context.replace("。", "，").replace("；", "，").split("，")
        return max(clauses, key=lambda clause: len(pairs(clause) & pairs(question)))

    answers = [answer(*row) for row in zip(x["question"], x["context"])]
    return {"clause like the question": reading_scores(texts_of(y), answers)["f1"]}


def texts_of(answers):
    return [[text for _, text in row] for row in answers]


def load_choices(args, part):
    rows = [
        ("".join(row["document"]), q) for row in read(args, "zh_c3", part) for q in row["questions"]
    ]
    x = {
        "context": [document for document, _ in rows],
        "question": [q["question"] for _, q in rows],
        "choices": [q["choices"] for _, q in rows],
    }
    return x, [q["answer"] for _, q in rows]


def overlapping_choice(train, test):
    """Chooses what shares the largest part of its pairs of characters with the document."""
    x, y = test

    def share(choice, document):
        pairs = [choice[i : i + 2] for i in range(len(choice) - 1)] or [choice]
        return sum(pair in document for pair in pairs) / len(pairs)

    right = first = 0
    for document, choices, answer in zip(x["context"], x["choices"], y):
        shares = [share(choice, document) for choice in choices]
        right += shares.index(max(shares)) == answer
        first += 1 / len(choices)
    return {"choice like the document": right / len(y), "chance": first / len(y)}


def classes(name, columns, label, **arguments):
    def load(args, part):
        rows = read(args, name, part)
        texts = tuple([row[column] for row in rows] for column in columns)
        return texts if len(texts) > 1 else texts[0], [str(row[label]) for row in rows]

    def rivals(train, test):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        (words, found), (test_words, test_found) = (
            ([" ".join(row) for row in zip(*x)] if isinstance(x, tuple) else x, y)
            for x, y in (train, test)
        )
        vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        model = LogisticRegression(C=10, max_iter=1000).fit(vectors.fit_transform(words), found)
        most = Counter(found).most_common(1)[0][0]
        return {
            "bag of characters": model.score(vectors.transform(test_words), test_found),
            "majority": test_found.count(most) / len(test_found),
        }

    return {
        "load": load,
        "cls": RoFormerTextClassifier,
        "options": lambda train: {"labels": sorted(set(train[1])), "pooling": "mean"},
        "arguments": {"sequence_length": 128, **arguments},
        "labels": lambda y: y,
        "score": None,  # of logits, see `fine_tune`
        "rivals": rivals,
    }


TASKS = {
    "ner_msra": entities("zh_ner_msra"),
    "ner_weibo": entities("zh_ner_weibo"),
    "cmrc": {
        "load": load_reading,
        "cls": RoFormerQuestionAnswering,
        "options": lambda train: {},
        "arguments": {"word_level": False, "sequence_length": 384},
        "labels": lambda y: [(start, start + len(text)) for (start, text), *_ in y],
        "score": lambda y, answers: reading_scores(texts_of(y), answers),
        "rivals": overlapping_clause,
    },
    "c3": {
        "load": load_choices,
        "cls": RoFormerMultipleChoice,
        "options": lambda train: {"pooling": "mean"},  # [CLS] had no task in pretraining
        "arguments": {"sequence_length": 192},
        "labels": lambda y: y,
        "score": choice_accuracy,
        "rivals": overlapping_choice,
    },
    "ocnli": classes("zh_ocnli", ("sentence1", "sentence2"), "label"),
    "iflytek": classes("zh_iflytek", ("text",), "label", sequence_length=192),
    "chnsenticorp": classes("zh_chnsenticorp", ("text",), "label"),
}


def select(data, rows):
    """Takes rows of a list, or of each list in a tuple or a dictionary."""
    if isinstance(data, dict):
        return {name: select(column, rows) for name, column in data.items()}
    if isinstance(data, tuple):
        return tuple(select(column, rows) for column in data)
    return [data[row] for row in rows]


def sample(data, count):
    """Draws up to `count` examples, the same in every run."""
    size = len(data[1])
    return select(data, random.Random(0).sample(range(size), min(count, size)))


# The best answer to each example: of a model, and in what its SavedModel returns.
BEST = {
    RoFormerTextClassifier: (
        lambda model, x: [row[0][0] for row in model.classify(x)],
        lambda served: [label.decode() for label in served["label"]],
    ),
    RoFormerTokenClassifier: (
        lambda model, x: [{span[:2] for span in row} for row in model.predict(x, verbose=0)],
        lambda served: [
            {(start, end) for start, end in zip(*row) if start >= 0}
            for row in zip(served["start"], served["end"])
        ],
    ),
    RoFormerQuestionAnswering: (
        lambda model, x: [row[0][:2] for row in model.predict(x, verbose=0)],
        lambda served: [*zip(served["start"][:, 0], served["end"][:, 0])],
    ),
    RoFormerMultipleChoice: (
        lambda model, x: [row[0][0] for row in model.predict(x, verbose=0)],
        lambda served: [*served["index"][:, 0]],
    ),
}


def served_alike(model, x):
    """Counts the examples to which the exported SavedModel gives the model's own answers."""
    of_model, of_served = BEST[type(model)]
    if isinstance(x, tuple):
        signature, columns = "pairs", dict(zip(("first", "second"), x))
    else:
        signature, columns = "serving_default", x if isinstance(x, dict) else {"texts": x}
    columns = {
        name: tf.ragged.constant(column).to_tensor("") if name == "choices" else tf.constant(column)
        for name, column in columns.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        served = tf.saved_model.load(str(export_saved_model(model, Path(folder) / "served")))
        answers = served.signatures[signature](**columns)
    answers = of_served({name: value.numpy() for name, value in answers.items()})
    return sum(bool(a == b) for a, b in zip(of_model(model, x), answers, strict=True))


def fine_tune(args, task, settings, train, test, from_scratch):
    """Trains a head, and returns the scores of its best epoch on the validation part."""
    options = {**task["arguments"], **task["options"](train)}
    model = task["cls"].from_preset(
        str(args.model), load_weights=not from_scratch, dtype=settings["dtype"], **options
    )
    (x, y), (test_x, test_y) = train, test
    steps = settings["epochs"] * math.ceil(len(y) / settings["batch_size"])
    schedule = LinearWarmupDecay(settings["learning_rate"], steps, warmup_steps=0.1)
    decay = 1.0 if from_scratch else 0.9  # random lower layers have nothing to keep
    optimizer = LayerwiseAdamW(
        schedule, model.backbone.num_layers, layer_decay=decay, global_clipnorm=1.0
    )
    model.compile(optimizer)
    score = task["score"]
    if score is None:
        right = np.array([{name: i for i, name in enumerate(model.labels)}.get(y) for y in test_y])

        def score(y, logits):
            return {"accuracy": float((logits.argmax(-1) == right).mean())}

    metrics = AnswerMetrics(test_x, test_y, score)
    history = model.fit(
        x,
        task["labels"](y),
        batch_size=settings["batch_size"],
        epochs=settings["epochs"],
        group_by_length=True,
        callbacks=[metrics],
        verbose=2,
    ).history
    curves = {name.removeprefix("val_"): values for name, values in history.items()}
    scores = {name: values[metrics.best_epoch] for name, values in curves.items()}
    alike = served_alike(model, select(test_x, range(min(SERVED, len(test_y)))))
    return {"best": metrics.best, "scores": scores, "curves": curves, "served_alike": alike}


def run(args):
    """Computes the runs that are not in the results yet."""
    for name in args.tasks:
        settings = experiment.with_values({**SETTINGS, **CHANGES.get(name, {})}, args.set)
        run_task(args, Results(args.results), name, settings)


def run_task(args, results, name, settings):
    model = Path(args.model).name
    task, common = TASKS[name], {"task": name, "model": model, **settings}
    train, test = (
        sample(task["load"](args, part), settings["max_examples"]) for part in ("train", "valid")
    )
    counts = {"trained_on": len(train[1]), "measured_on": len(test[1])}

    def rivals():
        return {"rivals": task["rivals"](train, test), **counts}

    def compute(start, seed):
        keras.backend.clear_session()
        keras.utils.set_random_seed(seed)
        return {**fine_tune(args, task, settings, train, test, start == "random"), **counts}

    results.run(f"{name}-{model}-rivals", {**common, "start": "rivals"}, rivals)
    for seed in args.seeds:
        for start in args.starts:
            results.run(
                f"{name}-{model}-{start}-{seed}",
                {**common, "start": start, "seed": seed},
                functools.partial(compute, start, seed),
                model=args.model if start == "pretrained" else None,
            )


def report(results):
    """Writes the table of the finished runs."""
    rows = []
    groups = results.grouped("task", "model", "start")
    pairs = dict.fromkeys(key[:2] for key in groups)  # in the order of their first runs
    for name, model in sorted(pairs, key=lambda pair: [*TASKS].index(pair[0])):
        (rivals,) = (run["result"] for run in groups[name, model, "rivals"])
        runs = [groups.get((name, model, start), []) for start in STARTS]
        every = sum(runs, [])
        exported = [r["result"]["served_alike"] for r in every if "served_alike" in r["result"]]
        rows.append(
            (
                f"{name}, {'F1' if name.startswith(('ner', 'cmrc')) else 'accuracy'}",
                model.removeprefix("chinese_roformer_"),
                *(mean_and_spread([100 * run["result"]["best"] for run in each], "{:.1f}") for each in runs),
                ", ".join(f"{k} {100 * v:.1f}" for k, v in rivals["rivals"].items()),
                f"{rivals['trained_on']:,}, {rivals['measured_on']:,}",
                f"{sum(exported)} of {SERVED * len(exported)}",
                mean_and_spread([run["cpu_seconds"] / 60 for run in every], "{:.1f}"),
            )
        )  # fmt: skip
    header = "task, score % | model | pretrained | random weights | rivals | trained, measured on | served alike"
    results.write_report(
        "Every task on real data",
        "The best of all epochs on the validation part: mean ± standard deviation (number of seeds). The models "
        "are those of `checkpoints/`. Served alike: examples to which the exported SavedModel gives the answer of "
        "the Keras model.",
        markdown_table([*header.split(" | "), "CPU minutes"], rows),
    )


def main():
    parser = experiment.make_parser(__doc__, "finetune_tasks")
    parser.add_argument("--model", default=str(TINY), help="pretrained model")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
