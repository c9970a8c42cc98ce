"""Fine-tunes a model on documents cut at 512, 1024 and 1536 tokens: table 5 of the paper, scaled down.

    python experiments/finetune_long.py
    python experiments/finetune_long.py --tasks fudan --lengths 512 1024
    python experiments/finetune_long.py --report

Two tasks, trained as in two of the examples: classes of journal articles (examples/finetune_classifier.py), measured on
texts that did not help to choose the epoch; and similar legal cases (examples/match_long_documents.py), the task of
table 5. Only forty triplets are there to measure on, so a single one moves the accuracy by 2.5 points.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import math
import sys
from pathlib import Path

import experiment
import keras
import numpy as np
from experiment import ROOT, Results, markdown_table, mean_and_spread

from roformer_tf import RoFormerTokenizer

sys.path.append(str(ROOT / "examples"))
import finetune_classifier
import match_long_documents

PAPER = (("BERT-512", "64.13", "67.77"), ("WoBERT-512", "64.07", "68.10")) + (
    ("RoFormer-512", "64.13", "68.29"),
    ("RoFormer-1024", "66.07", "69.79"),
)
SETTINGS = {
    "fudan_epochs": 2,
    "fudan_learning_rate": 5e-4,
    "scm_epochs": 3,
    "scm_learning_rate": 2e-4,
    "batch_size": 8,
    "max_examples": 900,  # of each part
    "dtype": "float32",
}


def fudan(args, settings):
    """Makes a function from length and seed to the result on the classes of zh_fudan_long."""
    parts = {}
    for part in ("train", "valid"):
        rows = experiment.read_lines(Path(args.data) / "zh_fudan_long" / f"{part}.jsonl.xz")
        rows = rows[: settings["max_examples"]]
        parts[part] = [row["text"] for row in rows], [row["label"] for row in rows]
    names = sorted(set(parts["train"][1]))
    train, validation = finetune_classifier.split_off(*parts["train"])
    data = {"train": train, "validation": validation, "test": parts["valid"]}
    data = {
        name: (texts, np.array([names.index(label) for label in labels]))
        for name, (texts, labels) in data.items()
    }
    lengths = 2 + token_counts(args.model, data["test"][0])

    def run(length, seed):
        classifier = finetune_classifier.fine_tune(
            args.model,
            data,
            len(names),
            epochs=settings["fudan_epochs"],
            batch_size=settings["batch_size"],
            learning_rate=settings["fudan_learning_rate"],
            sequence_length=length,
            dtype=settings["dtype"],
            seed=seed,
        )
        texts, labels = data["test"]
        _, accuracy = classifier.evaluate(
            texts, labels, batch_size=settings["batch_size"], verbose=0
        )
        counts = {"trained_on": len(train[0]), "measured_on": len(labels)}
        return {"accuracy": accuracy, "cut": float((lengths > length).mean()), **counts}

    return run


def scm(args, settings):
    """Makes the same function for the triplets of cail2019_scm."""
    folder, limit = Path(args.data) / "cail2019_scm", settings["max_examples"]
    train, valid = (
        match_long_documents.read_triplets(folder / f"{part}.jsonl.xz", limit)
        for part in ("train", "valid")
    )
    (first, second), _ = match_long_documents.make_pairs(valid)
    lengths = 3 + token_counts(args.model, first) + token_counts(args.model, second)

    def run(length, seed):
        _, curve = match_long_documents.fine_tune(
            args.model,
            train,
            valid,
            sequence_length=length,
            epochs=settings["scm_epochs"],
            batch_size=settings["batch_size"],
            learning_rate=settings["scm_learning_rate"],
            dtype=settings["dtype"],
            seed=seed,
        )
        counts = {"trained_on": len(train), "measured_on": len(valid)}
        cut = float((lengths > length).mean())
        return {"accuracy": curve[-1], "curve": curve, "cut": cut, **counts}

    return run


TASKS = {"fudan": fudan, "scm": scm}


def token_counts(model, texts):
    """Counts the tokens of each text, without special ones."""
    tokenizer = RoFormerTokenizer.from_preset(str(model))
    return np.array([len(ids) for ids in tokenizer(texts)])


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = experiment.with_values(SETTINGS, args.set)
    results = Results(args.results)
    for task in args.tasks:
        compute = TASKS[task](args, settings)
        own = {k: v for k, v in settings.items() if k.split("_")[0] not in {*TASKS} - {task}}

        def seeded(length, seed, compute=compute):
            keras.backend.clear_session()
            keras.utils.set_random_seed(seed)
            return compute(length, seed)

        for seed in args.seeds:
            for length in args.lengths:
                results.run(
                    f"{task}-{length}-{seed}",
                    {"task": task, "length": length, "seed": seed}
                    | {"model": Path(args.model).name, **own},
                    lambda length=length, seed=seed, seeded=seeded: seeded(length, seed),
                    model=args.model,
                )


def report(results):
    """Writes the table of the finished runs, with table 5."""
    groups = results.grouped("task", "length")
    rows = []
    for (task, length), runs in sorted(groups.items()):
        result = runs[0]["result"]
        accuracies = [100 * r["result"]["accuracy"] for r in runs]
        p, count = np.mean(accuracies) / 100, result["measured_on"]
        rows.append(
            (
                task,
                length,
                mean_and_spread(accuracies, "{:.1f}"),
                f"{100 * math.sqrt(p * (1 - p) / count):.1f}",
                f"{result['cut']:.0%}",
                f"{result['trained_on']:,}",
                count,
                mean_and_spread([r["seconds"] / 60 for r in runs], "{:.1f}"),
            )
        )
    header = "task | tokens | accuracy % | standard error of the test | texts cut | trained on | measured on"
    results.write_report(
        "Long documents: table 5 in small",
        f"Model: {next(iter(groups.values()))[0]['settings']['model']}. Accuracy: mean ± standard deviation (number of "
        "seeds). The standard error of the test comes from its small number of texts, and seeds do not show it.",
        markdown_table([*header.split(" | "), "minutes"], rows),
        "scm counts triplets after the last epoch; each triplet gives two pairs to train on. For comparison, table 5 "
        "of the paper: the same task with 8,964 triplets and base-size models, in percent:",
        markdown_table(("model", "validation", "test"), PAPER),
    )


def main():
    parser = experiment.make_parser(__doc__, "finetune_long")
    parser.add_argument("--model", default=str(finetune_classifier.TINY), help="pretrained model")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 1536])
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
