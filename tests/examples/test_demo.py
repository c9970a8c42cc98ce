import re
import sys

import pytest

from tests.processes import environment_of_a_user, run_program


@pytest.mark.slow
def test_demo_runs_where_there_is_no_terminal(examples, repository, tmp_path):
    """In a process of its own, as `make demo` starts it; it starts a second one that must not import Keras."""
    process = run_program(
        *(sys.executable, examples / "demo.py", "--train-examples", "16", "--test-examples", "16"),
        *("--epochs", "1", "--output", tmp_path),
        cwd=tmp_path,
        env=environment_of_a_user(PYTHONPATH=str(repository), COLUMNS="160", NO_COLOR="1"),
    )
    assert process.stderr == ""  # tests/test_quiet.py leaves these journeys to the demo
    for line in ("Fill masks", "Fine-tune, random weights", "Summary", "seconds: all"):
        assert line in process.stdout
    assert "\x1b[" not in process.stdout
    difference = process.stdout.split("largest difference")[1].split("\n")[0].strip(" │")
    assert float(difference) < 1e-5  # float32 probabilities, printed to six places
    # of the second process, whose input from lines is tested in test_short_programs.py
    served = re.findall(r"│ (negative|positive) +│ (\d+\.\d)% +│", process.stdout)
    assert len(served) == 4 and all(50 <= float(percent) <= 100 for _, percent in served)
