"""Fine-tunes a classifier of sentence pairs, here whether two questions mean the same.

    python examples/finetune_pairs.py --train train.tsv --test valid.tsv --columns question1 question2

The files are tab-separated, with a header line, two columns of text and a column `label`. Without files it trains on
eight pairs, to show how.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import csv
from pathlib import Path

import keras
import numpy as np

from roformer_tf import RoFormerTextClassifier

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"
SAME = [
    ("怎么学英语", "如何学习英语"),
    ("酒店在哪里", "酒店的位置在哪"),
    ("几点开门", "什么时候开门"),
]
DIFFERENT = [("怎么学英语", "酒店在哪里"), ("几点开门", "如何学习英语"), ("酒店在哪里", "几点关门")]


def read_pairs(path, columns):
    """Reads a file as `((first texts, second texts), labels)`."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, second = ([row[column] for row in rows] for column in columns)
    return (first, second), np.array([int(row["label"]) for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--train", help="file of labelled pairs")
    parser.add_argument("--test", help="file of labelled pairs to measure on")
    parser.add_argument("--columns", nargs=2, default=["text1", "text2"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="3e-5 suits base models")
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    if args.train:
        train = read_pairs(args.train, args.columns)
        test = read_pairs(args.test or args.train, args.columns)
    else:
        train = tuple(map(list, zip(*SAME, *DIFFERENT))), np.array([1] * 3 + [0] * 3)
        test = train
    classifier = RoFormerTextClassifier.from_preset(
        args.model, num_classes=2, pooling="mean", sequence_length=128
    )
    classifier.compile(
        keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # XLA would compile each length again
    )
    classifier.fit(*train, epochs=args.epochs, batch_size=args.batch_size, verbose=2)
    _, accuracy = classifier.evaluate(*test, batch_size=args.batch_size, verbose=0)
    print(f"accuracy {accuracy:.1%} of {len(test[1]):,} pairs")


if __name__ == "__main__":
    main()
