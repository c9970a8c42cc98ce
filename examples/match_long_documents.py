"""Similar-case matching: of two judgments B and C, which is closer to A?

    python examples/match_long_documents.py --data DIRECTORY
    python examples/match_long_documents.py --data DIRECTORY --model chinese_roformer_L-12_H-768_A-12 --learning-rate 6e-6

The task of CAIL2019-SCM, as `finetune_scm.py` of the original repository sets it up: the pair (A, closer) is labelled
1, the pair (A, other) 0; mean pooling, one sigmoid, Adam; a triplet is right if its closer pair scores higher. RoPE
has no table of positions, so `--sequence-length` is free: the paper compares 512 with 1024.

DIRECTORY holds `train.jsonl.xz` and `valid.jsonl.xz`; each line a JSON object with texts `A`, `B`, `C` and `label`,
`"B"` or `"C"`, the one that is closer to A.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import lzma
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from roformer_tf import RoFormerTextClassifier

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "checkpoints" / "chinese_roformer_tiny"


def read_triplets(path, limit=None):
    """List of `(text, closer text, other text)`."""
    if not path.exists():
        raise SystemExit(
            f"There is no {path}: `--data` must name the folder of train.jsonl.xz and valid.jsonl.xz "
            "(the docstring of this file says what is in them)."
        )
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:limit]
    other = {"B": "C", "C": "B"}
    return [(row["A"], row[row["label"]], row[other[row["label"]]]) for row in rows]


def make_pairs(triplets):
    """`((first texts, second texts), labels)` of the pairs, two for each triplet."""
    first = [a for a, _, _ in triplets for _ in range(2)]
    second = [text for _, closer, other in triplets for text in (closer, other)]
    return (first, second), np.array([1.0, 0.0] * len(triplets), "float32")


def triplet_accuracy(classifier, triplets, batch_size):
    """Share of triplets whose closer pair scores higher than the other one."""
    pairs, _ = make_pairs(triplets)
    scores = classifier.predict(pairs, batch_size=batch_size, verbose=0).reshape(-1, 2)
    return float((scores[:, 0] > scores[:, 1]).mean())


class TripletAccuracy(keras.callbacks.Callback):
    """Adds the accuracy on triplets to the logs of each epoch."""

    def __init__(self, triplets, batch_size):
        super().__init__()
        self.triplets, self.batch_size = triplets, batch_size

    def on_epoch_end(self, epoch, logs=None):
        logs["val_triplets"] = triplet_accuracy(self.model, self.triplets, self.batch_size)
        print(f"epoch {epoch + 1}: triplet accuracy {logs['val_triplets']:.1%}")


def fine_tune(
    model_folder,
    train,
    valid,
    from_scratch=False,
    sequence_length=1024,
    epochs=20,
    batch_size=8,
    learning_rate=6e-6,
    dtype="float32",
    seed=0,
):
    """A trained `RoFormerTextClassifier`, and its accuracies on the `valid` triplets: at first, after each epoch."""
    classifier = RoFormerTextClassifier.from_preset(
        str(model_folder),
        load_weights=not from_scratch,
        num_classes=1,
        activation="sigmoid",
        pooling="mean",
        sequence_length=sequence_length,
        dtype=dtype,
    )
    classifier.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.BinaryAccuracy(name="pairs")],
        jit_compile=False,  # batches differ in length, and XLA compiles each anew
    )
    before = triplet_accuracy(classifier, valid, batch_size)
    # Shuffled by the seed: the same run again takes the same order.
    pairs = tf.data.Dataset.from_tensor_slices(make_pairs(train))
    history = classifier.fit(
        pairs.shuffle(2 * len(train), seed=seed).batch(batch_size),
        epochs=epochs,
        shuffle=False,
        callbacks=[TripletAccuracy(valid, batch_size)],
        verbose=1 if sys.stdout.isatty() else 2,
    )
    return classifier, [before, *history.history["val_triplets"]]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "cail2019_scm"))
    parser.add_argument("--model", default=str(TINY), help="folder of the checkpoint or preset")
    parser.add_argument("--from-scratch", action="store_true", help="start from random weights")
    parser.add_argument("--sequence-length", type=int, default=1024, help="of the pair, in tokens")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--learning-rate", type=float, default=6e-6, help="a small model wants more, 2e-4"
    )
    parser.add_argument("--dtype", default="float32", help="or mixed_bfloat16")
    parser.add_argument("--max-examples", type=int, help="triplets of each part, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    train = read_triplets(Path(args.data) / "train.jsonl.xz", args.max_examples)
    valid = read_triplets(Path(args.data) / "valid.jsonl.xz", args.max_examples)

    start = time.time()
    classifier, curve = fine_tune(
        args.model,
        train,
        valid,
        from_scratch=args.from_scratch,
        sequence_length=args.sequence_length,
        epochs=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        dtype=args.dtype,
        seed=args.seed,
    )
    minutes = (time.time() - start) / 60

    error = np.sqrt(0.25 / len(valid))
    table = Table("triplets", "accuracy", title="Similar-case matching")
    table.add_row(f"{len(valid)} unseen, before training", f"{curve[0]:.1%}")
    table.add_row(f"{len(valid)} unseen, after the last epoch", f"{curve[-1]:.1%}")
    table.add_row(
        f"{len(train)} of training", f"{triplet_accuracy(classifier, train, args.batch_size):.1%}"
    )
    table.add_row("chance", f"50.0% ± {error:.1%}")
    table.caption = f"{minutes:.1f} minutes, length {args.sequence_length}, {args.model}"
    Console().print(table)


if __name__ == "__main__":
    main()
