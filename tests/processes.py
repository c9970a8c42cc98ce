"""Programs that tests run in processes of their own."""

import os
import subprocess


def run_program(*command, **options):
    """Runs a program that must succeed; returns the finished process with its output as text."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done


def environment_of_a_user(**variables):
    """The environment without what hides messages and libraries in the tests: the log level, and the path."""
    hiding = {"TF_CPP_MIN_LOG_LEVEL", "PYTHONPATH"}
    return {**{k: v for k, v in os.environ.items() if k not in hiding}, **variables}
