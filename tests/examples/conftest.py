import importlib
import json
import lzma
import sys

import pytest

from roformer_tf.checkpoint import save_checkpoint
from tests.models import builders


def write_lines(path, rows):
    """Writes a file of JSON lines, compressed if its name ends in .xz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows)) + "\n")


@pytest.fixture(autouse=True, scope="session")
def folders(repository):
    """The examples and experiments, whose files import each other by bare names, as in `python examples/x.py`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("examples", "experiments"):
            patch.syspath_prepend(str(repository / name))
        yield


@pytest.fixture
def examples(repository):
    """The folder of the examples."""
    return repository / "examples"


@pytest.fixture(scope="session")
def one_layer(repository, tmp_path_factory):
    """A model with the vocabulary of the tiny one, and one layer: its graphs take half the time."""
    backbone = builders.backbone(vocabulary_size=9216, num_layers=1)
    vocabulary = repository / "checkpoints" / "chinese_roformer_tiny" / "vocab.txt"
    folder = tmp_path_factory.mktemp("one_layer") / "one_layer"
    return save_checkpoint(backbone, folder, vocabulary=vocabulary)


@pytest.fixture(scope="session")
def call():
    """Imports a program and calls its `main` with arguments; returns the module."""

    def call_main(name, *arguments, **changes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [name, *map(str, arguments)])
            patch.setenv("COLUMNS", "160")  # does not wrap tables
            program = importlib.import_module(name)
            for key, value in changes.items():
                patch.setattr(program, key, value)
            program.main()
        return program

    return call_main


@pytest.fixture
def run(call, capsys):
    """Calls a program's `main` with arguments; returns what it printed."""

    def run_main(name, *arguments):
        call(name, *arguments)
        return capsys.readouterr().out

    return run_main
