"""Writes the pages of `docs/reference` that are made from the code.

    python docs/make_reference.py        (or: make docs-pages)

`README.md` lists every public name, with its file and the first sentence of its docstring; the site
has a page for each (docs/site_hooks.py). `command_line.md` has the help of every command.
"""

import argparse
import importlib
import inspect
import os
import pkgutil
import re
import sys
from pathlib import Path

os.environ["COLUMNS"] = "100"  # the width of the help
os.environ["NO_COLOR"] = "1"

import roformer_tf
from roformer_tf.__main__ import make_parser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"

INDEX = """# Every public name

<!-- Written by `python docs/make_reference.py`. -->

On the documentation site, each name links to its docstring; on the repository's host, it links to
its file. In Python, `help(roformer_tf.RoFormerMaskedLM)` prints the same. [The command
line](command_line.md) and [the settings of pretraining](settings.md) have pages of their own.
"""

COMMANDS = """# The command line

<!-- Written by `python docs/make_reference.py`. -->

Every command is `python -m roformer_tf COMMAND`, and prints this help with `--help`. A command that
fails says why in one line and exits with status 2; `--debug` before the command shows the
traceback. Commands that take texts read the lines of standard input if none is given, and print a
JSON line for each with `--json`.

| command | what it does |
|---|---|
"""


def public_names():
    """Returns {package: {name: object}} of every `__all__` of roformer_tf and its subpackages."""
    modules = [roformer_tf]
    for module in pkgutil.walk_packages(roformer_tf.__path__, "roformer_tf."):
        if module.ispkg or module.name == "roformer_tf.rotary":
            modules.append(importlib.import_module(module.name))
    found, seen = {}, set()
    for module in modules:
        public = getattr(module, "__all__", None)
        if public is None and hasattr(module, "__file__") and not hasattr(module, "__path__"):
            own = inspect.getmembers(module, inspect.isfunction)
            public = [n for n, f in own if f.__module__ == module.__name__ and n[0] != "_"]
        names = {n: getattr(module, n) for n in public or []}
        # a class of the top package is listed there only
        new = {name: x for name, x in names.items() if callable(x) and name not in seen}
        seen |= set(new)
        if new:
            found[module.__name__] = new
    return found


def first_sentence(value):
    """Returns the first sentence of a docstring, on one line."""
    text = re.sub(r"\s+", " ", inspect.getdoc(value).partition("\n\n")[0])
    return text.replace("|", "\\|")


def index_page():
    """Returns the text of `reference/README.md`."""
    lines = [INDEX.rstrip("\n")]
    for package, names in public_names().items():
        lines += ["", f"## {package}", "", "| name | |", "|---|---|"]
        for name in sorted(names, key=str.lower):
            module = names[name].__module__
            if getattr(sys.modules[module], name, None) is not names[name]:
                module = package  # the package has another name for it
            path = module.replace(".", "/") + ".py"
            if not (ROOT / path).exists():
                path = path.removesuffix(".py") + "/__init__.py"
            lines.append(f"| [`{name}`](../../{path}) | {first_sentence(names[name])} |")
    return "\n".join(lines) + "\n"


def command_page():
    """Returns the text of `reference/command_line.md`."""
    parser = make_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {action.dest: action.help for action in commands._choices_actions}
    lines = [COMMANDS.rstrip("\n")]
    lines += [f"| [{name}](#{name}) | {helps[name]} |" for name in commands.choices]
    for name, command in commands.choices.items():
        lines += ["", f"## {name}", "", "```text", command.format_help().rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


PAGES = {"README.md": index_page, "command_line.md": command_page}


def main():
    """Writes both pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
