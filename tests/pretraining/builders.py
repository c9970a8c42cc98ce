"""Small models, batches and settings for the tests of pretraining, and the rows of its logs."""

import contextlib
import csv
import json

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

import roformer_tf
from roformer_tf.pretraining import Pretrainer

VOCABULARY_SIZE = 60
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
# Sums over sequences come in another order. Adam divides by sqrt(v) + 1e-6, so weights whose
# gradient is about 1e-6 or below move by whatever rounding made of it, such as key biases, whose
# gradient is zero but for rounding. So the bound is on the distance of all weights together.
TOLERANCE = 1e-6
TIMES = ("tokens_per_second", "seconds", "input_wait")  # what a log has of the clock


def distance(weights, reference):
    """Euclidean distance of all weights, relative to the reference's length."""
    square = sum(((a.astype("float64") - b) ** 2).sum() for a, b in zip(weights, reference))
    return float(np.sqrt(square / sum((b.astype("float64") ** 2).sum() for b in reference)))


def make_task(dropout=0.0, masking="bidirectional", dtype="float32", **arguments):
    settings = {
        "vocabulary_size": VOCABULARY_SIZE,
        **SIZES,
        "dropout": dropout,
        "attention_dropout": dropout,
        "masking": masking,
        "dtype": dtype,
        **arguments,
    }
    backbone = roformer_tf.RoFormerBackbone(**settings)
    if masking == "bidirectional":
        return roformer_tf.RoFormerMaskedLM(backbone)
    return roformer_tf.RoFormerCausalLM(backbone)


def make_pretrainer(optimizer, weights=None, **arguments):
    """Makes a compiled pretrainer; `arguments` go to `Pretrainer` and `make_task`."""
    names = "slices", "seed", "recompute", "xla", "max_length"
    own = {name: arguments.pop(name) for name in names if name in arguments}
    task = make_task(**arguments)
    if weights is not None:
        task.set_weights(weights)
    pretrainer = Pretrainer(task, **own)
    pretrainer.compile_for(optimizer)
    return pretrainer


@contextlib.contextmanager
def determinism_ends():
    """Undoes `run.deterministic`, which TensorFlow would keep for the rest of the process."""
    try:
        yield
    finally:
        disable_op_determinism()


class Reused:
    """Makes each pretrainer once and resets it to before its first step: a graph takes seconds."""

    def __init__(self):
        self.made = {}

    def __call__(self, key, make):
        if key not in self.made:
            pretrainer = make()
            variables = pretrainer.variables + pretrainer.optimizer.variables
            self.made[key] = pretrainer, variables, [np.asarray(v) for v in variables]
        pretrainer, variables, values = self.made[key]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        assert pretrainer.steps_done == 0
        return pretrainer


def make_batches(rng, count):
    """Batches of random lengths and random numbers of predicted tokens, some with none."""
    batch_size, width, slots = 8, 12, 5
    batches = []
    for index in range(count):
        lengths = rng.integers(3, width + 1, batch_size)
        padding_mask = (np.arange(width) < lengths[:, None]).astype("int32")
        token_ids = (
            rng.integers(1, VOCABULARY_SIZE, (batch_size, width)).astype("int32") * padding_mask
        )
        predicted = np.minimum(rng.integers(0, slots + 1, batch_size), lengths)
        predicted[: batch_size // 2] = np.minimum(predicted[: batch_size // 2], 1)
        weights = (np.arange(slots) < predicted[:, None]).astype("float32")
        positions = np.zeros((batch_size, slots), "int32")
        for row, (length, number) in enumerate(zip(lengths, predicted)):
            positions[row, :number] = rng.permutation(length)[:number]
        labels = rng.integers(1, VOCABULARY_SIZE, (batch_size, slots)).astype("int32")
        batches.append(
            {
                "token_ids": token_ids,
                "segment_ids": rng.integers(0, 2, (batch_size, width)).astype("int32")
                * padding_mask,
                "padding_mask": padding_mask,
                "mask_positions": positions,
                "labels": np.where(weights > 0, labels, 0).astype("int32"),
                "label_weights": weights,
                "window": np.zeros(batch_size, "int64"),
                "index": np.full(batch_size, index, "int64"),
            }
        )
    return batches


def packed(batch):
    """The batch with two sequences to a row, which it says to keep apart."""
    count, width = batch["token_ids"].shape
    rows = {**batch, "mask_positions": batch["mask_positions"].copy()}
    rows["mask_positions"][count // 2 :] += width
    rows = {name: np.concatenate(np.split(x, 2), -1) for name, x in rows.items() if x.ndim > 1}
    rows["document_ids"] = rows["padding_mask"] * np.repeat([1, 2], width).astype("int32")
    rows["position_ids"] = np.tile(np.arange(width, dtype="int32"), (count // 2, 2))
    return rows | {name: x[: count // 2] for name, x in batch.items() if x.ndim == 1}


def as_dataset(batches):
    """An endless dataset of these batches."""
    signature = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in batches[0].items()}
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.repeat().with_options(options)


def train(pretrainer, batches, steps=None):
    """Trains on the batches in order and returns the history."""
    history = pretrainer.fit(
        as_dataset(batches), epochs=steps or len(batches), steps_per_epoch=1, verbose=0
    )
    return history.history


def run_values(folder, stages, **tables):
    """Settings of a small run on the texts of a folder; `tables` change or add single values."""
    data = {"files": [str(folder / "texts.txt")], "cache": str(folder / "cache")}
    values = {
        "data": {**data, "held_out": 0.1},
        "model": {"vocabulary": str(folder / "vocab.txt"), "word_level": False, **SIZES},
        "optimizer": {"clip_norm": 1.0},
        "run": {"checkpoint_every": 3, "held_out_batches": 2, "seed": 4},
        "stages": stages,
    }
    return changed(values, tables)


def changed(values, tables):
    """Returns settings with single values of their `tables` changed or added."""
    return values | {name: {**values.get(name, {}), **new} for name, new in tables.items()}


def write_toml(path, values):
    """Writes nested settings as TOML, whose strings, numbers and lists are those of JSON."""
    tables = []
    for name, content in values.items():
        if name == "stages":
            tables += [("[[stages]]", stage) for stage in content]
        elif name == "tasks":
            tables += [(f"[tasks.{task}]", table) for task, table in content.items()]
        else:
            tables.append((f"[{name}]", content))
    lines = []
    for title, table in tables:
        lines += [title, *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in table.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows(path):
    """Rows of a log, as dicts of strings."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
