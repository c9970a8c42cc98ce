"""Runs the commands of a Markdown page and writes what they print below them.

    python docs/run_commands.py docs/samples.md

A command is a line that begins with `$ ` in a block of the language `console`. The lines up to the
next command or the end of the block are its output, and are replaced. If a command fails, the page
is not changed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.M | re.S)


def refresh_block(block):
    """Returns a block with the output of each command below it."""
    lines = []
    for line in block[0].splitlines():
        if line.startswith("$ "):
            lines += [line, *run(line[2:]).rstrip("\n").split("\n")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def run(command):
    """Returns what a shell command prints, run in the repository's folder with this Python."""
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
        raise SystemExit(f"`{command}` failed, and the page is not changed:\n{done.stderr}")
    return done.stdout


def main():
    """Refreshes the pages named on the command line."""
    for name in sys.argv[1:]:
        page = Path(name)
        text = BLOCK.sub(refresh_block, page.read_text(encoding="utf-8"))
        new = page.with_name(page.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.replace(page)


if __name__ == "__main__":
    main()
