"""Programs that tests run in processes of their own."""

import subprocess


def run_program(*command, **options):
    """Runs a program that must succeed; returns the finished process with its output as text."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done
