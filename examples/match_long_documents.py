"""Finds the closer of two long documents: similar legal cases, up to 1024 tokens a pair.

    python examples/match_long_documents.py --data FOLDER
    python examples/match_long_documents.py --data FOLDER --model chinese_roformer_L-12_H-768_A-12 --learning-rate 6e-6

The task of CAIL2019-SCM, set up as in `finetune_scm.py` of the original: the pair (A, closer) has label 1 and the pair
(A, other) label 0. A triplet is right if its closer pair scores higher. RoPE has no table of positions, so any
`--sequence-length` works.

FOLDER holds `train.jsonl.xz` and `valid.jsonl.xz`. Each line is a JSON object with the texts `A`,
`B`, `C`, and a `label`, `"B"` or `"C"`, that says which of them is closer to A.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import json
import lzma
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from roformer_tf import RoFormerTextClassifier

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "checkpoints" / "chinese_roformer_tiny"


def read_triplets(path, limit=None):
    """Reads a list of `(text, closer text, other text)`."""
    if not path.exists():
        raise SystemExit(
            f"There is no {path}. --data must name a folder with train and valid.jsonl.xz."
        )
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:limit]
    other = {"B": "C", "C": "B"}
    return [(row["A"], row[row["label"]], row[other[row["label"]]]) for row in rows]


def make_pairs(triplets):
    """Makes two pairs of each triplet: `((first texts, second texts), labels)`."""
    first = [a for a, _, _ in triplets for _ in range(2)]
    second = [text for _, closer, other in triplets for text in (closer, other)]
    return (first, second), np.array([1.0, 0.0] * len(triplets), "float32")


def triplet_accuracy(classifier, triplets, batch_size):
    """Computes the share of triplets whose closer pair scores higher."""
    pairs, _ = make_pairs(triplets)
    scores = classifier.predict(pairs, batch_size=batch_size, verbose=0).reshape(-1, 2)
    return float((scores[:, 0] > scores[:, 1]).mean())


def fine_tune(
    model_folder,
    train,
    valid,
    sequence_length=1024,
    epochs=3,
    batch_size=8,
    learning_rate=2e-4,
    dtype="float32",
    seed=0,
):
    """Trains a `RoFormerTextClassifier`. Returns it, and its accuracies: before, and after each epoch."""
    classifier = RoFormerTextClassifier.from_preset(
        str(model_folder),
        num_classes=1,
        activation="sigmoid",
        pooling="mean",
        sequence_length=sequence_length,
        dtype=dtype,
    )
    classifier.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(),
        jit_compile=False,  # XLA would compile each length again
    )
    curve = [triplet_accuracy(classifier, valid, batch_size)]

    def measure(epoch, logs):
        curve.append(triplet_accuracy(classifier, valid, batch_size))
        print(f"epoch {epoch + 1}: triplet accuracy {curve[-1]:.1%}", flush=True)

    pairs = tf.data.Dataset.from_tensor_slices(make_pairs(train))
    classifier.fit(
        pairs.shuffle(2 * len(train), seed=seed).batch(batch_size),
        epochs=epochs,
        shuffle=False,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=measure)],
        verbose=2,
    )
    return classifier, curve


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "cail2019_scm"))
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--sequence-length", type=int, default=1024, help="tokens of a pair")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="6e-6 suits base models")
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    train, valid = (read_triplets(Path(args.data) / f"{x}.jsonl.xz") for x in ("train", "valid"))
    options = {key: value for key, value in vars(args).items() if key not in ("data", "model")}
    _, curve = fine_tune(args.model, train, valid, **options)
    print(f"{len(valid)} unseen triplets: {curve[0]:.1%} before, {curve[-1]:.1%} after training")


if __name__ == "__main__":
    main()
