"""Kept results: how they were made, and files that are written whole or not at all."""

import datetime
import json
import os
import shlex

from benchmarks import machine


def date():
    """Now, to the minute."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def command(module, arguments):
    """The command line that runs a module."""
    return shlex.join(["python", "-m", module, *arguments])


def made_by(module, arguments):
    """What a record begins with."""
    return {"date": date(), "command": command(module, arguments), "machine": machine.describe()}


def source(record):
    """The line of a report that says what made its figures, and where and when."""
    kind = record["machine"]
    return f"`{record['command']}` on {kind['cores']} cores of {kind['cpu']}, {record['date']}."


def write_text(path, text):
    """To a temporary name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path, record):
    """The record of a measurement, see `write_text`."""
    write_text(path, json.dumps(record, indent=1) + "\n")
