"""`python -m benchmarks.compat_bert4keras`: one script on `roformer_tf.compat.bert4keras` and on bert4keras itself.

The same text, with other import lines, trains a classifier on the vector of [CLS] with Adam and decay, and predicts.
Each library has a process of its own; they take turns, and a batch has another width in every turn, as the batches of
such scripts do.
"""

import contextlib
import re
import statistics
from dataclasses import asdict

from benchmarks import records
from benchmarks.client import Client
from benchmarks.sizes import MEDIUM, TINY

WORKER = "benchmarks.compat_bert4keras_worker"
SIDES = {"ours": "roformer_tf.compat.bert4keras", "bert4keras": "bert4keras on tf-keras"}
TASKS = {
    "step": "fine-tuning step, {batch} × up to {length}",
    "predict": "`predict`, {batch} × up to {length}",
    "one": "`predict`, one text",
}
PROGRAM = """
import numpy as np
from bert4keras.backend import keras
from bert4keras.models import build_transformer_model
from bert4keras.optimizers import Adam, extend_with_weight_decay


def build(config):
    base = build_transformer_model(model='roformer', return_keras_model=False, **config)
    output = keras.layers.Lambda(lambda x: x[:, 0])(base.model.output)
    output = keras.layers.Dense(units=2, activation='softmax')(output)
    model = keras.models.Model(base.model.input, output)
    AdamW = extend_with_weight_decay(Adam, name='AdamW')
    model.compile(
        loss='sparse_categorical_crossentropy',
        optimizer=AdamW(learning_rate=1e-5, weight_decay_rate=0.01),
        metrics=['accuracy'],
    )
    return model


def batches(rng, size, batch, length):
    while True:
        width = int(rng.integers(length // 2, length + 1))
        x = rng.integers(5, size, (batch, width))
        yield [x, 0 * x], rng.integers(0, 2, (batch, 1))
"""


def text_of(side):
    if side == "bert4keras":
        return PROGRAM
    return re.sub(r"(?m)^from bert4keras\b", "from roformer_tf.compat.bert4keras", PROGRAM)


def measure(sizes, batch, length, steps, repeats, seed):
    """Returns a dictionary for each task and library; `runs` are seconds per call, in order."""
    results = []
    with contextlib.ExitStack() as stack:
        workers = {side: stack.enter_context(Client(WORKER)) for side in SIDES}
        for side, worker in workers.items():
            worker("build", side=side, text=text_of(side), sizes=asdict(sizes), seed=seed)
        for task, row in TASKS.items():
            rounds = []
            for turn in range(repeats + 1):  # the first one also compiles, and is not counted
                options = {"task": task, "batch": batch, "length": length, "steps": steps}
                seconds = {s: w("run", **options, seed=turn)["seconds"] for s, w in workers.items()}
                rounds.append(seconds)
                print(f"{task}: turn {turn} of {repeats}: {seconds}")
            ratios = [r["bert4keras"] / r["ours"] for r in rounds[1:]]
            for side in SIDES:
                runs = [turn[side] for turn in rounds[1:]]
                results.append(
                    {
                        "row": row.format(batch=batch, length=length),
                        "side": side,
                        "seconds": statistics.median(runs),
                        "ratio": statistics.median(ratios),
                        "runs": runs,
                    }
                )
    return results


def table(record):
    """Returns lines of Markdown."""
    lines = ["| | library | median | bert4keras / ours |", "|---|---|---|---|"]
    for r in record["results"]:
        ratio = f"{r['ratio']:.2f}" if r["side"] == "bert4keras" else ""
        lines.append(f"| {r['row']} | {SIDES[r['side']]} | {1e3 * r['seconds']:.0f} ms | {ratio} |")
    return lines


def main(arguments=None):
    parser = records.make_parser("compat_bert4keras", __doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3, help="calls in a turn (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    output = records.output_of(given, "compat_bert4keras")
    sizes = TINY if given.quick else MEDIUM
    record = {
        **records.made_by("benchmarks.compat_bert4keras", arguments),
        "sizes": asdict(sizes),
        "seed": given.seed,
        "results": measure(
            sizes, given.batch, given.length, given.steps, given.repeats, given.seed
        ),
    }
    about = (
        f"{sizes.layers} layers of width {sizes.width}, vocabulary {sizes.vocabulary:,}, float32, "
        "random weights, dropout 0.1 in training, batches of new widths. Medians; the libraries take "
        "turns, a process each."
    )
    records.report(
        output,
        record,
        "A script on `roformer_tf.compat.bert4keras` and on bert4keras",
        about,
        table(record),
    )


if __name__ == "__main__":
    main()
