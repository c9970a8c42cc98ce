"""`docs/make_notebooks.py` makes notebooks of pages, and each of them runs."""

import json
import runpy
import sys

import pytest

from tests.pages import DOCS, ROOT
from tests.processes import run_program

MAKER = runpy.run_path(DOCS / "make_notebooks.py")
PAGES = MAKER["pages_to_make"]()
PAGE = """# Title

Text with a [page](other.md), a [site](https://keras.io) and ![a picture](a.png).

```python
x = 1

print(x)
```

```console
$ command
```

```python
print(x + 1)
```
"""


def code_of(notebook):
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_cells_are_the_blocks_of_python():
    notebook = MAKER["notebook"](PAGE)
    assert code_of(notebook)[1:] == ["x = 1\n\nprint(x)", "print(x + 1)"]
    first, *others = (c["source"] for c in notebook["cells"] if c["cell_type"] == "markdown")
    assert first.startswith("# Title\n\nRun this notebook in a copy of the repository.\n\nText")
    assert first.endswith("Text with a page, a [site](https://keras.io) and a picture.")
    assert others == ["```console\n$ command\n```"]
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ValueError, match="at least one block of Python"):
        MAKER["notebook"]("# Title\n")


def test_no_block_of_a_page_is_lost():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(code_of(MAKER["notebook"](text))) - 1 == text.count("```python")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_runs(page, tmp_path):
    """Runs the cells one after the other, as a kernel does, in a new process."""
    maker = [sys.executable, DOCS / "make_notebooks.py", page, "--output", "build/made"]
    run_program(*maker, cwd=tmp_path)
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    (path,) = (tmp_path / "build" / "made").iterdir()
    cells = code_of(json.loads(path.read_text(encoding="utf-8")))
    program = f"for cell in {cells!r}:\n    exec(compile(cell, '<cell>', 'exec'), globals())\n"
    if page.stem == "fine_tune":  # each model is trained for few steps: see tests/test_docs.py
        program = f"import tensorflow as tf\ntf.config.run_functions_eagerly(True)\n{program}"
    run_program(sys.executable, "-c", program, cwd=path.parent)
