"""How the tests run a command and read what it prints."""

import json

import pytest

from roformer_tf.__main__ import main

TEXTS = ["天地玄黄", "宇宙洪"]  # characters of `tests.models.builders.tokenizer`


def run(*arguments):
    """Returns the exit status of a command. Paths and numbers become text."""
    return main([str(argument) for argument in arguments])


@pytest.fixture
def printed_json(capsys):
    """Function that reads what a command printed with `--json`: an object a line."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def error_of(capsys):
    """Function that runs a command, which must fail, and returns its message."""

    def error_of(*arguments):
        assert run(*arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1, "one line, no traceback"
        return captured.err

    return error_of
