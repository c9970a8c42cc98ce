"""`python -m benchmarks.pretraining_memory`: pretraining steps as `plan` predicts them, and as measured.

Measures the peak of memory of each case in a process of its own. The times of steps are those that
`python -m benchmarks` measured, see `STEPS`.
"""

import argparse
import json
from pathlib import Path

from benchmarks import records
from benchmarks.client import run_case

_MB = 2**20
_FIRST_STEPS = 2  # make the optimizer's slots
_NUM_STEPS = 12  # that count

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
_LITTLE_TEXT = {"num_layers": 1, "vocabulary_size": 40_000, "rows": 1}
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
    {"position_scheme": "relative"},
    {"position_scheme": "deberta"},
    {"position_scheme": "transformer_xl"},
    {"position_scheme": "t5"},
    {"position_scheme": "tupe"},
    _LITTLE_TEXT,
    {**_LITTLE_TEXT, "optimizer": "lamb"},
    {**_LITTLE_TEXT, "optimizer": "adafactor"},
]
# Steps in float32 of `results/libraries_zen4.jsonl`: name, (layers, heads, width, vocabulary), sequences
# of 512 tokens, median of the seconds. The first gives the rate at which the others are predicted.
BASE, SMALL = (12, 12, 768, 50_000), (6, 6, 384, 9_216)
STEPS = [
    ("ready batches", BASE, 4, 7.229),
    ("ready batches", BASE, 8, 15.321),
    ("masked-only projection", BASE, 8, 14.105),
    ("documents, packed", SMALL, 8, 20.766 / 8),
    ("documents, bucketed", SMALL, 30_776 / 32 / 512, 21.264 / 32),
]


def predict(case):
    """Returns the `StepMemory` of a case."""
    from roformer_tf.pretraining import ModelSizes

    case = {**DEFAULTS, **case}
    sizes = ModelSizes(
        case["vocabulary_size"],
        max_sequence_length=case["length"],
        **{name: case[name] for name in _MODEL if name in case},
    )
    micro_batch_size = -(-case["rows"] // case["slices"])
    return sizes.step_memory(
        case["optimizer"],
        micro_batch_size,
        case["length"],
        micro_batch_size * _slots(case),
        slices=case["slices"],
        recompute=case["recompute"],
    )


def predict_seconds():
    """Predicts the seconds of each of `STEPS`, at the rate of the first."""
    from roformer_tf.pretraining import ModelSizes

    flops = []
    for _, (layers, heads, width, vocabulary_size), batch_size, _ in STEPS:
        sizes = ModelSizes(vocabulary_size, layers, heads, width, 4 * width)
        flops.append(sizes.step_flops(batch_size, 512, round(0.15 * batch_size * 512)))
    return [STEPS[0][3] * work / flops[0] for work in flops]


def measure(case):
    """Measures, in a process of its own, the bytes in use at a step's peak, as TensorFlow's allocator counts them.

    It is the highest of some steps: the threads decide the order of a step's operations, and with it
    up to a quarter of the peak.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    # the allocator that counts comes with oneDNN; accelerators have it always
    environment["TF_ENABLE_ONEDNN_OPTS"] = "1"
    # a single thread would take the same order in all steps, and another one in the next process
    environment |= {"TF_NUM_INTEROP_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2"}
    done = run_case("benchmarks.pretraining_memory", {**DEFAULTS, **case}, environment)
    if done.returncode:
        raise RuntimeError(f"The measurement of {case} failed:\n{done.stderr[-4000:]}")
    return int(done.stdout.splitlines()[-1])


def _measure_here(case):
    import keras
    import tensorflow as tf

    peaks, device = [], "CPU:0"

    def note_peak(step, logs):
        peaks.append(tf.config.experimental.get_memory_info(device)["peak"])
        tf.config.experimental.reset_memory_stats(device)

    _train(_pretrainer(case), case, keras.callbacks.LambdaCallback(on_train_batch_end=note_peak))
    return max(peaks[_FIRST_STEPS:])


def _slots(case):
    return round(case["share"] * case["length"])


def _pretrainer(case):
    from roformer_tf.pretraining import Pretrainer
    from roformer_tf.pretraining.models import make_optimizer, make_task
    from roformer_tf.pretraining.settings import ModelSettings, OptimizerSettings

    model = ModelSettings(vocabulary="-", **{name: case[name] for name in _MODEL if name in case})
    task = make_task(model, "masked_lm", case["vocabulary_size"], case["length"])
    pretrainer = Pretrainer(
        task, slices=case["slices"], recompute=case["recompute"], max_length=case["length"]
    )
    settings = OptimizerSettings(name=case["optimizer"], clip_norm=case["clip_norm"])
    pretrainer.compile_for(make_optimizer(settings, 1e-4))
    return pretrainer


def _train(pretrainer, case, callback):
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
    data = data.repeat(_FIRST_STEPS + _NUM_STEPS)
    pretrainer.fit(data, shuffle=False, callbacks=[callback], verbose=0)


def kept_results():
    """Returns the kept measurements: dictionaries of `case` and `measured`, in bytes."""
    return records.read(records.RESULTS / "pretraining_memory.jsonl")["results"]


def write(record, output):
    # after each case: an error costs no more than what follows it
    records.write(output, record)
    defaults = ", ".join(f"{name}={value}" for name, value in DEFAULTS.items())
    lines = ["# Pretraining steps, predicted and measured", "", "## Peak of memory", ""]
    lines += [f"What a case leaves out: {defaults}.", "", *_table("case")]
    for result in record["results"]:
        case = ", ".join(f"{k}={v}" for k, v in result["case"].items()) or "–"
        predicted, measured = predict(result["case"]).peak / _MB, result["measured"] / _MB
        lines.append(_row(case, predicted, measured, ".0f", "MB"))
    lines += ["", "## Time of a step", "", "At the rate that the first one sustains.", ""]
    lines += _table("step")
    for step, predicted in zip(STEPS, predict_seconds()):
        name, (layers, _, width, _), batch_size, measured = step
        name = f"{name}, {layers} × {width}, {batch_size:.3g} × 512 tokens"
        lines.append(_row(name, predicted, measured, ".2f", "s"))
    records.write_text(output.with_suffix(".md"), "\n".join(lines) + "\n")


def _table(what):
    return [f"| {what} | predicted | measured | predicted / measured |", "|---|---|---|---|"]


def _row(name, predicted, measured, form, unit):
    return f"| {name} | {predicted:{form}} {unit} | {measured:{form}} {unit} | {predicted / measured:.2f} |"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretraining_memory", description=__doc__
    )
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument(
        "--output",
        type=Path,
        default=records.RESULTS / "pretraining_memory.jsonl",
        help="file for the results; a table is written beside it (%(default)s)",
    )
    parser.add_argument(
        "--report", action="store_true", help="measure nothing, write the table again"
    )
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(_measure_here(arguments.case))
        return
    if arguments.report:
        record = records.read(arguments.output)
        write(record, arguments.output)
        return
    record = {
        **records.made_by("benchmarks.pretraining_memory"),
        "defaults": DEFAULTS,
    }
    record["results"] = []
    for case in CASES:
        record["results"].append({"case": case, "measured": measure(case)})
        print(record["results"][-1], flush=True)
        write(record, arguments.output)


if __name__ == "__main__":
    main()
