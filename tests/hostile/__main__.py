"""Runs many hostile cases: `python -m tests.hostile --count 5000 --output results.jsonl`."""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter

OUTCOMES = ("right", "named error", "nothing claimed", "defect")


def table_of(records):
    """Returns the rows of a Markdown table: subject, and how many cases had each outcome."""
    counts = Counter((record["subject"], record["outcome"]) for record in records)
    rows = [["", *OUTCOMES], ["---"] * (len(OUTCOMES) + 1)]
    for name in dict.fromkeys(record["subject"] for record in records):
        rows.append([name, *(str(counts[name, outcome]) for outcome in OUTCOMES)])
    total = Counter(record["outcome"] for record in records)
    rows.append(["all", *(str(total[outcome]) for outcome in OUTCOMES)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def work(args):
    """Runs the cases from number `args.first` on; prints each as a line of JSON."""
    # a device without an end gives a MemoryError, and does not take the whole machine
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, resource.RLIM_INFINITY))
    from tests.hostile.subjects import SUBJECTS, Cases

    names = args.subjects or list(SUBJECTS)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROFORMER_TF_CACHE"] = f"{folder}/cache"  # of what is unpacked
        cases = Cases(folder, args.seed)
        for number in range(args.first, args.count):
            record = {"subject": names[number % len(names)], "case": number}
            print(json.dumps(record), flush=True)  # in case the process dies
            print(json.dumps(cases.run(**record), ensure_ascii=False), flush=True)


def run_cases(arguments, count):
    """Yields the record of every case. If a case kills the process, another one goes on."""
    number = 0
    while number < count:
        command = [sys.executable, "-m", "tests.hostile", "--worker", "--first", str(number)]
        with subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            record = None
            for line in process.stdout:
                if line.startswith("{"):
                    record = json.loads(line)
                    if "outcome" in record:
                        yield record
        if process.returncode == 0:
            return
        if record is None or "outcome" in record:
            raise RuntimeError(f"a worker failed between two cases, with {process.returncode}")
        yield {
            **record,
            "way": "unknown",
            "outcome": "defect",
            "error": f"the process died, {process.returncode}",
        }
        number = record["case"] + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="number of cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", help="JSON lines: how many cases of each kind had an outcome")
    parser.add_argument("--subjects", nargs="+", help="those whose names are given; default: all")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    arguments = ["--count", str(args.count), "--seed", str(args.seed)]
    if args.subjects:
        arguments += ["--subjects", *args.subjects]
    records = []
    for record in run_cases(arguments, args.count):
        records.append(record)
        if record["outcome"] == "defect":
            print(json.dumps(record, ensure_ascii=False), flush=True)
    if args.output:
        counts = Counter((r["subject"], r["way"], r["outcome"]) for r in records)
        with open(args.output, "w", encoding="utf-8") as file:
            for key in sorted(counts):
                line = dict(zip(("subject", "way", "outcome"), key), count=counts[key])
                file.write(json.dumps(line) + "\n")
    print(table_of(records))
    return int(any(record["outcome"] == "defect" for record in records))


if __name__ == "__main__":
    sys.exit(main())
