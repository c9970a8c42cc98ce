"""`python -m benchmarks.versions OTHER`: is this checkout slower than another one?

Measures inference, the training step, generation and the tokenizer of both checkouts. Each has a process of its own,
and they take turns, so that a drift of the machine hits both alike. Only ratios are worth reading.

    git worktree add ../before v0.1.0
    python -m benchmarks.versions ../before
"""

import argparse
import contextlib
import functools
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import corpus, generation, measure
from benchmarks.client import ROOT, Client
from benchmarks.sizes import BASE, QUICK
from benchmarks.turns import take_turns

PARTS = ("inference", "step", "generation", "tokenizer")
NEW_TOKENS = 64


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--quick", action="store_true", help="a small model, to see that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="%(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| case | before, s | now, s | now / before |\n|---|---|---|---|")
    for part in given.only.split(","):
        for case, (before, now) in run(part, given):
            before, now = statistics.median(before), statistics.median(now)
            print(f"| {part} {case} | {before:.3f} | {now:.3f} | {now / before:.2f} |", flush=True)


def run(part, given):
    """Yields `(case, (seconds of the other checkout, seconds of this one))` of one part."""
    sizes = QUICK if given.quick else BASE
    module = generation.WORKER if part == "generation" else "benchmarks.worker"
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Client(module, root)) for root in (given.other, ROOT)]
        if part == "tokenizer":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder, "vocab.txt")
            path.write_text("".join(f"{t}\n" for t in corpus.vocabulary()), encoding="utf-8")
            count = 256 if given.quick else measure.LINES
            call, cases = "tokenize", tokenizer_cases()
            for worker in workers:
                worker(
                    "tokenizers",
                    library="ours",
                    seed=given.seed,
                    count=count,
                    vocabulary_path=str(path),
                )
        else:
            call, cases = "run", model_cases(part, given.quick)
            task = {} if part == "generation" else {"task": part}
            for worker in workers:
                worker("build", implementation="ours", sizes=asdict(sizes), seed=given.seed, **task)
        for case, arguments in cases.items():
            calls = {worker: functools.partial(worker, call, **arguments) for worker in workers}
            turns = take_turns(calls, given.repeats, uncounted=2)  # the first two trace graphs
            yield case, [[turn["seconds"] for turn in of_one] for of_one in turns.values()]


def model_cases(part, quick):
    """Returns the arguments of a worker's `run`, by the name of the case."""
    if part == "generation":
        count = 4 if quick else NEW_TOKENS
        return {
            f"{batch} x {prompt}": {"batch": batch, "prompt": prompt, "new_tokens": count}
            for batch, prompt in (generation.QUICK_CASES if quick else generation.CASES)
        }
    shapes = (measure.QUICK_SHAPES if quick else measure.SHAPES)[part]
    return {f"{batch} x {length}": {"batch": batch, "length": length} for batch, length in shapes}


def tokenizer_cases():
    """Returns the arguments of a worker's `tokenize`, by the name of the case."""
    return {
        f"{level}, {way}": {"level": level, "size": 128, "way": way}
        for level in ("word", "char")
        for way in ("call", "tf.data")
    }


if __name__ == "__main__":
    main()
