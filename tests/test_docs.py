"""`docs/run_commands.py` writes what the commands of a page print."""

import runpy

import pytest

PAGE = """# Page

```console
$ echo a  b | cat
of an earlier run
$ printf '\\n1\\n2'
```

```python
$ no command
```
"""


@pytest.fixture
def refresh(repository, monkeypatch):
    """Function that runs the program on a page."""

    def refresh(page):
        monkeypatch.setattr("sys.argv", ["run_commands.py", str(page)])
        runpy.run_path(repository / "docs" / "run_commands.py", run_name="__main__")

    return refresh


def test_outputs_are_below_their_commands(refresh, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in "12":  # the second run replaces the output of the first
        refresh(page)
        expected = PAGE.replace("of an earlier run", "a b").replace("2'\n", "2'\n\n1\n2\n")
        assert page.read_text() == expected


def test_a_page_is_unchanged_if_a_command_fails(refresh, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(before := PAGE.replace("| cat", "&& cat nothing.txt"))
    with pytest.raises(SystemExit, match="cat nothing.txt` failed.*\n.*nothing.txt"):
        refresh(page)
    assert page.read_text() == before and len(list(tmp_path.iterdir())) == 1
