"""`python -m benchmarks.pretraining_memory`: the memory of a pretraining step, as predicted and as measured."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import machine, records

FOLDER = Path(__file__).resolve().parent
_MB = 2**20

# what a case leaves out; sizes that take some seconds and some hundred MB
DEFAULTS = {
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "dtype": "float32",
    "vocabulary_size": 5000,
    "rows": 32,
    "length": 256,
    "share": 0.15,
    "slices": 1,
    "recompute": False,
    "optimizer": "adamw",
    "clip_norm": None,
}
_MODEL = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout", "dtype")
_MODEL += ("attention_dropout", "activation", "norm", "embedding_dim", "position_scheme")
_LARGE_TABLE = {"num_layers": 1, "vocabulary_size": 60_000, "rows": 8}
_LARGE_BLOCKS = {"num_layers": 4, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048}
_LARGE_BLOCKS |= {"vocabulary_size": 2000, "rows": 2, "length": 128}
_V2 = {"norm": "rms_norm", "activation": "relu"}
CASES = [
    {"num_layers": 4},
    {**_LARGE_TABLE, "slices": 2},
    _LARGE_BLOCKS,
    {"num_layers": 4, "recompute": True},
    {"dtype": "mixed_bfloat16", "num_layers": 4},
    {**_LARGE_BLOCKS, "optimizer": "lamb"},
    {**_LARGE_BLOCKS, "optimizer": "adafactor"},
    {"length": 1024, "rows": 4, "num_heads": 8},
    {"num_layers": 4, "rows": 64, "slices": 4},
    {**_LARGE_BLOCKS, "slices": 2},
    {**_LARGE_BLOCKS, "clip_norm": 1.0},
    {"num_layers": 4, "recompute": True, "rows": 64, "slices": 2},
    {"num_layers": 4, **_V2},
    {"vocabulary_size": 20_000, "share": 1.0, "rows": 8},
    {"dtype": "mixed_bfloat16", **_LARGE_TABLE},
    _LARGE_TABLE,
    {**_LARGE_TABLE, "optimizer": "lamb"},
    {**_LARGE_TABLE, "optimizer": "adafactor"},
    {"num_layers": 4, "dropout": 0.0, "attention_dropout": 0.0},
    {**_LARGE_BLOCKS, "optimizer": "original_adamw"},
    {"dtype": "mixed_bfloat16", "num_layers": 4, "recompute": True},
    {"embedding_dim": 64, "position_scheme": "learned"},
]


def predict(case):
    """`StepMemory` of a case."""
    from roformer_tf.pretraining.memory import StepMemory
    from roformer_tf.pretraining.model_sizes import ModelSizes

    case = {**DEFAULTS, **case}
    sizes = ModelSizes(
        case["vocabulary_size"],
        max_sequence_length=case["length"],
        **{name: case[name] for name in _MODEL if name in case},
    )
    rows = -(-case["rows"] // case["slices"])
    return StepMemory.of(
        sizes,
        case["optimizer"],
        rows,
        case["length"],
        rows * _slots(case),
        slices=case["slices"],
        recompute=case["recompute"],
    )


def measure(case):
    """Bytes in use at the peak of a step, as TensorFlow's allocator counts them, in a process of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    # the allocator that counts comes with oneDNN; accelerators have it always
    environment["TF_ENABLE_ONEDNN_OPTS"] = "1"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.pretraining_memory"]
    command += ["--case", json.dumps({**DEFAULTS, **case})]
    done = subprocess.run(
        command, cwd=FOLDER.parent, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"The measurement of {case} failed:\n{done.stderr[-4000:]}")
    return int(done.stdout.splitlines()[-1])


def _measure_here(case):
    import tensorflow as tf

    pretrainer = _pretrainer(case)
    _train(pretrainer, case)
    tf.config.experimental.reset_memory_stats("CPU:0")
    _train(pretrainer, case)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"]


def _slots(case):
    return round(case["share"] * case["length"])


def _pretrainer(case):
    from roformer_tf.pretraining import Pretrainer
    from roformer_tf.pretraining.models import make_optimizer, make_task
    from roformer_tf.pretraining.settings import ModelSettings, OptimizerSettings

    model = ModelSettings(vocabulary="-", **{name: case[name] for name in _MODEL if name in case})
    task = make_task(model, "masked_lm", case["vocabulary_size"], case["length"])
    pretrainer = Pretrainer(task, slices=case["slices"], recompute=case["recompute"])
    settings = OptimizerSettings(name=case["optimizer"], clip_norm=case["clip_norm"])
    pretrainer.compile_for(make_optimizer(settings, 1e-4))
    return pretrainer


def _train(pretrainer, case):
    """Two steps."""
    import numpy as np
    import tensorflow as tf

    rows, length, slots, vocabulary_size = (
        case["rows"],
        case["length"],
        _slots(case),
        case["vocabulary_size"],
    )
    rng = np.random.default_rng(0)
    ones = np.ones((rows, length), "int32")
    batch = {
        "token_ids": rng.integers(1, vocabulary_size, (rows, length)).astype("int32"),
        "segment_ids": 0 * ones,
        "padding_mask": ones,
        "mask_positions": np.tile(np.arange(slots, dtype="int32"), (rows, 1)),
        "labels": rng.integers(1, vocabulary_size, (rows, slots)).astype("int32"),
        "label_weights": np.ones((rows, slots), "float32"),
        "window": np.zeros(rows, "int64"),
        "index": np.zeros(rows, "int64"),
    }
    signature = {k: tf.TensorSpec([None] * x.ndim, x.dtype) for k, x in batch.items()}
    data = tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=signature)
    pretrainer.fit(data.repeat(), steps_per_epoch=2, shuffle=False, verbose=0)


def _table(results):
    lines = ["| case | predicted | measured | predicted / measured |", "|---|---|---|---|"]
    for result in results:
        case = ", ".join(f"{k}={v}" for k, v in result["case"].items()) or "–"
        predicted, measured = (result[name] / _MB for name in ("predicted", "measured"))
        lines.append(
            f"| {case} | {predicted:.0f} MB | {measured:.0f} MB | {predicted / measured:.2f} |"
        )
    return lines


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretraining_memory", description=__doc__
    )
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument(
        "--output",
        type=Path,
        default=FOLDER / "results" / "pretraining_memory.json",
        help="file for the results; a table is written beside it (%(default)s)",
    )
    parser.add_argument(
        "--report", action="store_true", help="measure nothing: predict anew what was measured"
    )
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(_measure_here(arguments.case))
        return
    kept = json.loads(arguments.output.read_text()) if arguments.report else None
    results = []
    for case in [result["case"] for result in kept["results"]] if kept else CASES:
        measured = kept["results"][len(results)]["measured"] if kept else measure(case)
        results.append({"case": case, "predicted": predict(case).peak, "measured": measured})
        print(_table(results)[-1], flush=True)
        record = kept or {
            "date": records.date(),
            "machine": machine.describe(),
            "defaults": DEFAULTS,
        }
        _write({**record, "results": results}, arguments.output)


def _write(record, output):
    # after each case: an error costs no more than what follows it
    records.write_json(output, record)
    defaults = ", ".join(f"{name}={value}" for name, value in DEFAULTS.items())
    head = ["# Memory of a pretraining step", "", f"What a case leaves out: {defaults}.", ""]
    text = "\n".join([*head, *_table(record["results"])]) + "\n"
    records.write_text(output.with_suffix(".md"), text)


if __name__ == "__main__":
    main()
