"""Kills a short pretraining run again and again, and compares its end to an uninterrupted run.

    python -m tests.pretraining.kill_runs --kills 20 --replicas 1 2 --output kills.jsonl

SIGKILL comes at a random time of the life of the process, or, in two of five lives, a random moment
after a checkpoint or an export has begun to be written. A run that gets to its end is compared, and
another begun, until there were enough kills. `test_kills.py` runs the short form.
"""

import argparse
import contextlib
import datetime
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import records
from tests.pretraining import run_processes as runs


def kill_once(settings, output, rng, longest, arguments=(), kind=None, log=None):
    """Starts the run and kills it; a dict, with `killed` False if it had ended before."""
    kind = kind or str(rng.choice(["time", "checkpoint", "export"], p=[0.6, 0.3, 0.1]))
    before = runs.newest_step(output)
    began = time.monotonic()
    process = runs.start(settings, output, *arguments, log=log)
    try:
        if kind == "time":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(float(rng.uniform(0, longest)))
        else:
            folder = Path(output) / ("checkpoints" if kind == "checkpoint" else ".")
            passed_over = set(folder.glob(".saving-*"))  # of lives before

            def writes():
                return set(folder.glob(".saving-*")) - passed_over

            runs.wait_for(writes, process, timeout=600, pause=0.0005)
            time.sleep(float(rng.uniform(0, 0.02)))
        killed = runs.kill(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if not killed and process.returncode != 0:
        raise RuntimeError(f"the run ended by itself with status {process.returncode}; see {log}")
    return {
        "kind": kind,
        "seconds": round(time.monotonic() - began, 3),
        "killed": killed,
        "checkpoint_before": before,
        "checkpoint_after": runs.newest_step(output),
        "rows_after": runs.num_logged_steps(output),
    }


def compare(output, reference):
    """How far two complete runs are apart: a dict."""
    mine, other = runs.variables(output), runs.variables(reference)
    different = [name for name in other if not np.array_equal(mine[name], other[name])]
    return {
        "variables": len(other),
        "variables_not_bit_identical": len(different),
        "relative_distance": runs.distance(mine, other),
        "logs_identical": runs.log_without_times(output) == runs.log_without_times(reference),
    }


def kill_many(folder, replicas, kills, seed):
    """One strategy: the reference, and runs with `kills` SIGKILLs.

    Returns what holds for the strategy, a dict, and its rows, one for each life and each complete
    run.
    """
    arguments = () if replicas == 1 else ("--cpu-replicas", str(replicas))
    settings = runs.write_run(folder / "texts")
    log = folder / "messages.log"
    began = time.monotonic()
    status = runs.finish(runs.start(settings, folder / "whole", *arguments, log=log), timeout=900)
    longest = time.monotonic() - began
    if status:
        raise RuntimeError(f"the run that is not stopped ended with status {status}; see {log}")
    runs.check_complete(folder / "whole", settings)
    print(f"{replicas} replicas, not stopped: {longest:.1f} s; seed {seed}")
    rng = np.random.default_rng([seed, replicas])
    lives, results, number = [], [], 0
    while True:
        output = folder / f"killed-{number}"
        enough = sum(life["killed"] for life in lives) >= kills
        if enough:
            status = runs.finish(runs.start(settings, output, *arguments, log=log), timeout=900)
            if status:
                raise RuntimeError(f"the run ended with status {status}; see {log}")
            completed = True
        else:
            lives.append(
                {"run": number, **kill_once(settings, output, rng, longest, arguments, log=log)}
            )
            print(f"  {lives[-1]}")
            completed = not lives[-1]["killed"]
        if completed:
            runs.check_complete(output, settings)
            results.append({"run": number, **compare(output, folder / "whole")})
            print(f"  complete: {results[-1]}")
            number += 1
            if enough:
                break
    strategy = {
        "replicas": replicas,
        "seed": seed,
        "kills": sum(life["killed"] for life in lives),
        "seconds_not_stopped": round(longest, 1),
    }
    return strategy, [{"replicas": replicas, **row} for row in (*lives, *results)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs for each strategy")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=None, help="of the moments; drawn by default")
    parser.add_argument("--output", type=Path, help="file (JSON lines) for the result")
    args = parser.parse_args()
    seed = int(np.random.SeedSequence().entropy % 2**31) if args.seed is None else args.seed
    result = {
        "command": "python -m tests.pretraining.kill_runs " + shlex.join(sys.argv[1:]),
        "date": datetime.date.today().isoformat(),
        "strategies": [],
        "results": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for replicas in args.replicas:
            place = Path(folder) / str(replicas)
            strategy, rows = kill_many(place, replicas, args.kills, seed)
            result["strategies"].append(strategy)
            result["results"] += rows
            if args.output:
                records.write(args.output, result)


if __name__ == "__main__":
    main()
