"""`docs/run_commands.py` writes what the commands of a page print."""

import importlib.util

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
def commands(repository):
    spec = importlib.util.spec_from_file_location(
        "run_commands", repository / "docs/run_commands.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_outputs_are_below_their_commands(commands, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in "12":  # the second run replaces the output of the first
        monkeypatch.setattr("sys.argv", ["run_commands.py", str(page)])
        commands.main()
        expected = PAGE.replace("of an earlier run", "a b").replace("2'\n", "2'\n\n1\n2\n")
        assert page.read_text() == expected


def test_a_page_is_unchanged_if_a_command_fails(commands, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("| cat", "&& cat nothing.txt"))
    before = page.read_text()
    monkeypatch.setattr("sys.argv", ["run_commands.py", str(page)])
    with pytest.raises(SystemExit, match="cat nothing.txt` failed.*\n.*nothing.txt"):
        commands.main()
    assert page.read_text() == before and len(list(tmp_path.iterdir())) == 1
