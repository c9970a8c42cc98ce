"""Kept results: how they were made, and files that are written whole or not at all.

A file of results is JSON lines. The first says what holds for all results, such as the command and the machine, and
each of the others is one of the `results`.
"""

import argparse
import datetime
import json
import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import machine

RESULTS = Path(__file__).resolve().parent / "results"


def make_parser(name, about):
    """Makes the parser of `python -m benchmarks.NAME`, with the arguments that all take."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--output",
        type=Path,
        help=f"file for the results; a table is written beside it ({name}.jsonl in results/)",
    )
    return parser


def output_of(given, name):
    """Returns the file for the results. Those of a quick run go to a file of their own."""
    return given.output or RESULTS / f"{name}{'_quick' * given.quick}.jsonl"


def date():
    """Returns the date and the time, to the minute."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def command(module, arguments):
    """Returns the command line that runs a module."""
    return shlex.join(["python", "-m", module, *arguments])


def made_by(module, arguments=None):
    """Returns what a record begins with. `arguments` defaults to those of this process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return {
        "date": date(),
        "command": command(module, arguments),
        "machine": machine.describe(),
        "versions": {name: version(name) for name in ("tensorflow", "keras", "numpy")},
    }


def source(record):
    """Returns the line of a report that says what made its figures, where and when."""
    kind = record["machine"]
    return f"`{record['command']}` on {kind['cores']} cores of {kind['cpu']}, {record['date']}."


def write_text(path, text):
    """Writes a text file under a temporary name, then renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write(path, record):
    """Writes a dict, whose `results` is a list of dicts, as JSON lines."""
    about = {key: value for key, value in record.items() if key != "results"}
    lines = [json.dumps(line, ensure_ascii=False) for line in (about, *record["results"])]
    write_text(path, "\n".join(lines) + "\n")


def report(path, record, title, about, lines):
    """Writes a record, and beside it the table of its results, a list of lines. Prints the table too."""
    write(path, record)
    head = [f"# {title}", "", about, "", source(record), ""]
    write_text(path.with_suffix(".md"), "\n".join([*head, *lines]) + "\n")
    print("\n".join(lines))


def read(path):
    """Reads the dict that `write` wrote."""
    about, *results = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {**about, "results": results}


def write_parts(path, record):
    """Writes a dict whose `runs` and `results` have the same keys, the parts. Each part becomes a line."""
    results = [
        {"part": part, **run, "results": record["results"][part]}
        for part, run in record["runs"].items()
    ]
    about = {key: value for key, value in record.items() if key != "runs"}
    write(path, {**about, "results": results})


def read_parts(path):
    """Reads the dict that `write_parts` wrote."""
    record = read(path)
    lines = {line.pop("part"): line for line in record["results"]}
    results = {part: line.pop("results") for part, line in lines.items()}
    return {**record, "runs": lines, "results": results}
