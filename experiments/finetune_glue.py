"""Fine-tunes pretrained models on six GLUE tasks: table 2 of the paper, scaled down.

    python experiments/compare_positions.py --schemes learned rotary     # trains the models; --models names others
    python experiments/finetune_glue.py
    python experiments/finetune_glue.py --tasks mrpc stsb --learning-rates 1e-4 3e-4
    python experiments/finetune_glue.py --report

As in the paper: 3 epochs, batches of 32, and the best of the learning rates 2, 3, 4 and 5e-5 on the validation set,
averaged over the seeds. Small models need larger rates, so one is tried too and reported separately. Seed s fine-tunes
the model that was pretrained with seed s. Training sets are cut to `max_train` examples, the same for all runs.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import dataclasses
import functools
import itertools
import math
from pathlib import Path

import experiment
import keras
import numpy as np
import tensorflow as tf
from experiment import ROOT, Results, markdown_table, mean_and_spread, read_table
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from roformer_tf import RoFormerTextClassifier
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay


@dataclasses.dataclass(frozen=True)
class Task:
    """A GLUE task: columns of its texts, its classes (none for a score), its measure, and table 2 of the paper."""

    columns: tuple
    classes: tuple
    measure: str
    bert: str
    roformer: str


TASKS = {
    "mrpc": Task(("sentence1", "sentence2"), ("0", "1"), "F1", "88.9", "89.5"),
    "sst2": Task(("sentence",), ("0", "1"), "accuracy", "93.5", "90.7"),
    "qnli": Task(
        ("question", "sentence"), ("not_entailment", "entailment"), "accuracy", "90.5", "88.0"
    ),
    "stsb": Task(("sentence1", "sentence2"), (), "Spearman", "85.8", "87.0"),
    "qqp": Task(("question1", "question2"), ("0", "1"), "F1", "71.2", "86.4"),
    "mnli": Task(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        "accuracy",
        "84.6/83.4",
        "80.2/79.8",
    ),
}
OF_THE_PAPER = (2e-5, 3e-5, 4e-5, 5e-5)
LARGER = (5e-4,)
SETTINGS = {
    "max_train": 1500,
    "epochs": 3,
    "batch_size": 32,
    "sequence_length": 128,  # 512 in the paper; our BERT has only the positions that it was trained with
    "pooling": "mean",
    "pool": 16,  # batches that are sorted by length together
}
MODELS = "output/compare_positions"


def load_task(folder, name, max_train):
    """Reads a task as a dict from `"train"` and `"valid"` to `(texts, labels)`; pairs are a tuple of two lists."""
    task, data = TASKS[name], {}
    for part in ("train", "valid"):
        rows = read_table(Path(folder) / "glue" / name / f"{part}.tsv.xz")
        if part == "train":
            order = np.random.default_rng(0).permutation(len(rows))
            rows = [rows[i] for i in order[:max_train]]
        columns = tuple([row[column] for row in rows] for column in task.columns)
        if task.classes:
            labels = np.array([task.classes.index(row["label"]) for row in rows])
        else:
            labels = np.array([float(row["score"]) for row in rows], "float32")
        data[part] = (columns if len(columns) > 1 else columns[0], labels)
    return data


def measure(task, outputs, labels):
    """Computes F1 of class 1, Spearman's rank correlation or accuracy, in percent."""
    if task.measure == "Spearman":
        scores = outputs[:, 0]
        # constant scores have no ranks
        value = spearmanr(scores, labels).statistic if np.ptp(scores) else 0.0
    elif task.measure == "F1":
        value = f1_score(labels, outputs.argmax(-1), zero_division=0.0)
    else:
        value = accuracy_score(labels, outputs.argmax(-1))
    return 100 * float(value)


def without_a_model(task, labels):
    """Computes the score of the best constant answer."""
    if task.measure == "Spearman":
        return 0.0
    answers = np.eye(len(task.classes))
    return max(measure(task, np.tile(answer, (len(labels), 1)), labels) for answer in answers)


def batch_by_length(examples, batch_size, pool, seed):
    """Batches `(texts, labels)` of similar length, in random order. Little padding halves the time."""

    def sort(texts, labels):
        lengths = sum(tf.strings.length(part) for part in tf.nest.flatten(texts))
        order = tf.argsort(lengths, stable=True)
        return tf.nest.map_structure(lambda part: tf.gather(part, order), (texts, labels))

    steps = math.ceil(len(examples) / batch_size)
    pools = examples.batch(pool * batch_size).map(sort)
    batches = pools.unbatch().batch(batch_size).shuffle(pool, seed=seed)
    return batches.apply(tf.data.experimental.assert_cardinality(steps))


class FineTuning:
    """Fine-tunes models of one shape on one task. TensorFlow traces its graphs once for all runs.

    Args:
        name: str, the task.
        data: dict, from `load_task`.
        settings: dict like `SETTINGS`.
    """

    def __init__(self, name, data, settings):
        self.task, self.data, self.settings = TASKS[name], data, settings
        self.starts = {}  # initial values of the variables
        self.classifier = None

    def run(self, model, learning_rate, seed):
        """Trains the pretrained `model` on `data["train"]` and evaluates it on `data["valid"]`."""
        if (model, seed) not in self.starts:
            self._add_start(model, seed)
        for variable, value in zip(self.variables, self.starts[model, seed], strict=True):
            variable.assign(value)
        keras.utils.set_random_seed(seed)
        self.peak.assign(learning_rate)
        batch_size = self.settings["batch_size"]
        texts, labels = self.data["train"]
        if not self.task.classes:
            # ranks stay the same, and a small learning rate need not learn the mean first
            labels = (labels - labels.mean()) / labels.std()
        # the seed determines the order
        train = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(len(labels), seed=seed)
        history = self.classifier.fit(
            batch_by_length(train, batch_size, self.settings["pool"], seed),
            epochs=self.settings["epochs"],
            shuffle=False,
            verbose=0,
        )
        texts, labels = self.data["valid"]
        outputs = self.classifier.predict(texts, batch_size=4 * batch_size, verbose=0)
        return {
            "measure": self.task.measure,
            "value": measure(self.task, outputs, labels),
            "without_a_model": without_a_model(self.task, labels),
            "training_loss": [round(loss, 5) for loss in history.history["loss"]],
            "train": len(self.data["train"][1]),
            "valid": len(labels),
        }

    def _add_start(self, model, seed):
        """Loads a model with a head drawn from the seed. Every run trains in the variables of the first one."""
        keras.utils.set_random_seed(seed)
        classifier = RoFormerTextClassifier.from_preset(
            str(experiment.existing(model)),
            num_classes=len(self.task.classes) or 1,
            pooling=self.settings["pooling"],
            sequence_length=self.settings["sequence_length"],
        )
        values = [keras.ops.convert_to_numpy(variable) for variable in classifier.variables]
        if self.classifier is None:
            self._compile(classifier)
        self.starts[model, seed] = [*values, *self.optimizer_start]

    def _compile(self, classifier):
        self.classifier, variables = classifier, classifier.variables
        per_epoch = math.ceil(len(self.data["train"][1]) / self.settings["batch_size"])
        self.peak = keras.Variable(
            0.0, trainable=False
        )  # a variable, since a traced graph would keep a number
        optimizer = LayerwiseAdamW(
            LinearWarmupDecay(self.peak, self.settings["epochs"] * per_epoch, 0.1),
            num_layers=classifier.backbone.num_layers,
            global_clipnorm=1.0,
        )
        # XLA would compile each length again
        classifier.compile(optimizer=optimizer, metrics=None, jit_compile=False)
        optimizer.build(classifier.trainable_variables)
        self.variables = [*variables, *optimizer.variables]
        self.optimizer_start = [keras.ops.convert_to_numpy(x) for x in optimizer.variables]


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = experiment.with_values(SETTINGS, args.set)
    models = dict(model.split("=", 1) for model in args.models)
    results = Results(args.results)
    for name in args.tasks:
        data = load_task(args.data, name, settings["max_train"])
        for model, folder in models.items():
            keras.backend.clear_session()
            fine_tuning = FineTuning(name, data, settings)
            for rate, seed in itertools.product(args.learning_rates, args.seeds):
                path = folder.format(seed=seed)
                results.run(
                    f"{model}-{name}-{rate:g}-{seed}",
                    {"task": name, "model": model, "learning_rate": rate, "seed": seed} | settings,
                    functools.partial(fine_tuning.run, path, rate, seed),
                    model=path,
                )


def best(runs, rates):
    """Returns the results of all seeds at the rate with the best mean."""
    groups = [
        [r["result"]["value"] for r in runs if r["settings"]["learning_rate"] == rate]
        for rate in rates
    ]
    groups = [values for values in groups if values]
    return max(groups, key=np.mean, default=[])


def report(results):
    """Writes table 2, and a table of every learning rate."""
    groups = results.grouped("model", "task")
    models = sorted({model for model, _ in groups})
    names = [name for name in TASKS if any((model, name) in groups for model in models)]
    rates = sorted(results.grouped("learning_rate"))
    larger = [rate for rate in rates if rate not in OF_THE_PAPER]

    def row(title, of):
        return [title, *(of(name) for name in names)]

    rows = [
        row("BERT, the paper", lambda name: TASKS[name].bert),
        row("RoFormer, the paper", lambda name: TASKS[name].roformer),
    ]
    for title, chosen in (
        (f"{', '.join(f'{rate:g}' for rate in OF_THE_PAPER)}", OF_THE_PAPER),
        (f"{', '.join(f'{rate:g}' for rate in larger)}", larger),
    ):
        rows += [
            row(
                f"{model}, best rate of {title}",
                lambda name, model=model, chosen=chosen: mean_and_spread(
                    best(groups.get((model, name), []), chosen), "{:.1f}"
                ),
            )
            for model in models
            if set(chosen) & set(rates)
        ]
    one = {name: next(runs for (_, task), runs in groups.items() if task == name) for name in names}
    rows += [
        row(
            "best constant answer",
            lambda name: f"{one[name][0]['result']['without_a_model']:.1f}",
        ),
        row(
            "examples trained on, validated on",
            lambda name: (
                f"{one[name][0]['result']['train']:,}, {one[name][0]['result']['valid']:,}"
            ),
        ),
    ]
    every = [
        [
            f"{model}, {rate:g}",
            *(
                mean_and_spread(best(groups.get((model, name), []), [rate]), "{:.1f}")
                for name in names
            ),
        ]
        for model in models
        for rate in rates
    ]
    header = ["", *(f"{name} ({TASKS[name].measure})" for name in names)]
    settings = groups[next(iter(groups))][0]["settings"]
    results.write_report(
        "GLUE: table 2 in small",
        f"{settings['epochs']} epochs, batches of {settings['batch_size']}, at most "
        f"{settings['sequence_length']} tokens, {settings['pooling']} pooling. Percent on the validation set after the "
        "last epoch: mean ± standard deviation (number of seeds) at the rate with the best mean. As in "
        "the paper, the rate is chosen on the set that is reported, which flatters all models alike.",
        markdown_table(header, rows),
        "mnli has one validation set here instead of a matched and a mismatched one. The validation "
        "examples of qqp and mnli come from GLUE's training sets, those of qnli are a part of GLUE's validation set.",
        "Every learning rate:",
        markdown_table(header, every),
    )


def main():
    parser = experiment.make_parser(__doc__, "finetune_glue")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME=FOLDER",
        default=[
            f"BERT={ROOT}/{MODELS}/learned-{{seed}}/stage-1-128",
            f"RoFormer={ROOT}/{MODELS}/rotary-{{seed}}/stage-1-128",
        ],
        help="folders of the pretrained models, with {seed} in place of the seed",
    )
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[*OF_THE_PAPER, *LARGER])
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
