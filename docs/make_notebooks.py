"""Makes Jupyter notebooks of pages: their text as Markdown, their blocks of Python as cells.

    python docs/make_notebooks.py              # the pages of NOTEBOOKS, into build/notebooks
    python docs/make_notebooks.py docs/answers.md --output notebooks

The notebooks are not in the repository: they hold nothing that the pages do not.
"""

import argparse
import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = ("tutorials/fine_tune.md", "tutorials/serve.md", "tutorials/own_model.md")
# Pages to take while a repository has none of those.
OTHERWISE = ("answers.md", "generation.md", "position_schemes.md")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# Links and pictures to other files lead nowhere from where a notebook lies.
LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)")
# The pages name folders of the repository, so a notebook runs where it finds them.
FIRST_CELL = """\
import os
from pathlib import Path

places = (Path.cwd(), *Path.cwd().parents)
os.chdir(next((place for place in places if (place / "checkpoints").is_dir()), Path.cwd()))
"""


def notebook(page):
    """Returns a page as a notebook: a dictionary in the format 4.5.

    Args:
        page: str. Markdown.

    Raises:
        ValueError: If the page has no block of Python.
    """
    cells, end = [], 0
    for block in PYTHON.finditer(page):
        cells += [("markdown", page[end : block.start()]), ("code", block[1])]
        end = block.end()
    if not cells:
        raise ValueError("Expected a page with at least one block of Python.")
    cells.append(("markdown", page[end:]))
    title, _, rest = cells[0][1].lstrip().partition("\n")
    cells[0] = ("markdown", f"{title}\n\nRun this notebook in a copy of the repository.\n{rest}")
    cells.insert(1, ("code", FIRST_CELL))
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
        "cells": [
            cell(kind, text.strip("\n"), number)
            for number, (kind, text) in enumerate(cells)
            if text.strip()
        ],
    }


def cell(kind, text, number):
    """Returns a cell of a notebook."""
    parts = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}}
    if kind == "code":
        return {**parts, "execution_count": None, "outputs": [], "source": text}
    return {**parts, "source": LINK.sub(r"\1", text)}


def pages_to_make():
    """Returns the paths of the pages that become notebooks by default."""
    pages = [DOCS / name for name in NOTEBOOKS if (DOCS / name).exists()]
    return pages or [DOCS / name for name in OTHERWISE]


def main():
    """Writes the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files")
    parser.add_argument("--output", type=Path, default=DOCS.parent / "build" / "notebooks")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for page in args.pages or pages_to_make():
        made = json.dumps(notebook(page.read_text(encoding="utf-8")), ensure_ascii=False, indent=1)
        target = args.output / f"{page.stem}.ipynb"
        target.write_text(made + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
