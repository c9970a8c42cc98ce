"""`python -m benchmarks.starting`: how long imports, loading and commands with one text take in fresh processes.

Processes take turns, so a ratio is the median over the turns. A command stands beside a process that imports the
package and loads the same model. A base-size checkpoint in the original format is loaded in a process that has imported
everything, beside reading its largest file and building the model with random weights.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import loading, records
from benchmarks.client import ROOT
from benchmarks.sizes import BASE, QUICK
from benchmarks.turns import take_turns

TINY = ROOT / "checkpoints" / "chinese_roformer_tiny"
COMMANDS = {  # class, arguments
    "fill-mask": ("RoFormerMaskedLM", ["今天[MASK]气很好。"]),
    "embed": ("RoFormerMaskedLM", ["今天天气很好。", "--pooling", "mean"]),
    "classify": ("RoFormerTextClassifier", ["今天天气很好。"]),
}
TIMED = """
import sys, time
import numpy as np, roformer_tf
roformer_tf.RoFormerMaskedLM.from_preset(sys.argv[2])  # imports what is needed on the way
start = time.perf_counter()
{}
print(time.perf_counter() - start)
"""
BUILD = "roformer_tf.RoFormerMaskedLM.from_preset(sys.argv[1], preprocessor=None{})"
LOADING = {
    "`np.fromfile`": "np.fromfile(sys.argv[1] + '/bert_model.ckpt.data-00000-of-00001', 'uint8')",
    "building the model": BUILD.format(", load_weights=False"),
    "`from_preset`": BUILD.format(""),
}


def run(arguments, printed=False):
    """Runs a process; returns its seconds, or those that it prints."""
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{arguments} failed: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1]) if printed else time.perf_counter() - start


def rows(
    base, classifier, modules=("tensorflow", "keras", "roformer_tf"), commands=tuple(COMMANDS)
):
    """Returns `{(title, title of what it stands beside): function that returns seconds}`."""

    def process(*arguments, printed=False):
        return lambda: run(arguments, printed)

    found = {
        (f"`import {name}`", "`import keras`"): process("-c", f"import {name}") for name in modules
    }
    for command in commands:
        cls, arguments = COMMANDS[command]
        folder = str(classifier if command == "classify" else TINY)
        beside = f"importing and loading `{cls}`, tiny"
        code = f"import roformer_tf; roformer_tf.{cls}.from_preset({folder!r})"
        found[beside, beside] = process("-c", code)
        found[f"`python -m roformer_tf {command}`", beside] = process(
            "-m", "roformer_tf", command, folder, *arguments
        )
    for title, code in LOADING.items():
        found[f"{title}, base size", "`from_preset`, base size"] = process(
            "-c", TIMED.format(code), str(base), str(TINY), printed=True
        )
    return found


def table(record):
    """Returns lines of Markdown."""
    lines = ["| | s | of | |", "|---|---|---|---|"]
    for row in record["results"]:
        beside = "" if row["row"] == row["beside"] else row["beside"]
        ratio = f"{row['ratio']:.2f} ×" if beside else ""
        lines.append(f"| {row['row']} | {median(row['seconds']):.2f} | {beside} | {ratio} |")
    return lines


def main():
    parser = records.make_parser("starting", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed turns (%(default)s)")
    arguments = parser.parse_args()
    output = records.output_of(arguments, "starting")
    record = records.made_by("benchmarks.starting")
    with tempfile.TemporaryDirectory() as folder:
        base, classifier = Path(folder, "base"), Path(folder, "classifier")
        loading.make_checkpoint("ours", base, QUICK if arguments.quick else BASE)
        import roformer_tf

        model = roformer_tf.RoFormerTextClassifier.from_preset(TINY, labels=["bad", "good"])
        model.save_to_preset(classifier)
        names = {"modules": ["keras"], "commands": ["fill-mask"]} if arguments.quick else {}
        processes = rows(base, classifier, **names)
        # the first turn reads files into the page cache
        seconds = take_turns(processes, arguments.repeats, 0 if arguments.quick else 1)
    by_row = {row: runs for (row, _), runs in seconds.items()}
    record["results"] = [
        {
            "row": row,
            "beside": beside,
            "seconds": runs,
            "ratio": median(a / b for a, b in zip(runs, by_row[beside], strict=True)),
        }
        for (row, beside), runs in seconds.items()
    ]
    about = "Wall time of fresh processes; medians, in turns. Files are in the page cache."
    records.report(output, record, "Starting", about, table(record))


if __name__ == "__main__":
    main()
