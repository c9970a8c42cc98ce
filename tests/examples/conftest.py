import sys

import pytest


@pytest.fixture(autouse=True)
def examples(repository, monkeypatch):
    """The folder of the examples, whose files import each other by their bare names, as in `python examples/x.py`."""
    folder = repository / "examples"
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def tiny(repository):
    """The small checkpoint that comes with the repository."""
    return repository / "checkpoints" / "chinese_roformer_tiny"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example's `main` with arguments; returns what it printed."""

    def run_main(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["example", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")  # tables are not to be wrapped
        main()
        return capsys.readouterr().out

    return run_main
