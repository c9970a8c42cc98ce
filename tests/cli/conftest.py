import json

import pytest


@pytest.fixture
def printed_json(capsys):
    """Function that reads what a command printed with `--json`: an object a line."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]
