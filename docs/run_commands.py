"""Runs the commands of a Markdown page and puts what they print below them.

    python docs/run_commands.py docs/samples.md

A command is a line that begins with `$ ` in a block of the language `console`; what follows up to the next command or
the end of the block is its output, and is replaced. The page is written when all commands have ended well.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.M | re.S)


def refreshed(page, run):
    """The text of a page with `run(command)` below each command."""
    return BLOCK.sub(lambda block: _block(block[0], run), page)


def _block(text, run):
    lines = []
    for line in text.splitlines():
        if line.startswith("$ "):
            lines += [line, *run(line[2:]).rstrip("\n").split("\n")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def run(command):
    """What a shell command prints, in the repository's folder; `python` is the one that runs this."""
    print(command, file=sys.stderr, flush=True)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env={**os.environ, **quiet, "PATH": path},
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise SystemExit(f"`{command}` failed, and the page is as it was:\n{done.stderr}")
    return done.stdout


def main():
    """Goes through the pages named on the command line."""
    for name in sys.argv[1:]:
        page = Path(name)
        text = refreshed(page.read_text(encoding="utf-8"), run)
        new = page.with_name(page.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.replace(page)


if __name__ == "__main__":
    main()
