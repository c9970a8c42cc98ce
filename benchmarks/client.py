"""The driver's side of a worker process, and of a process that measures one case."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Client:
    """Starts a worker process of the checkout in `root`. Ends it with `close`, or at the end of a `with` block."""

    def __init__(self, module="benchmarks.worker", root=ROOT, **environment):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=root,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "-1",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def __call__(self, call, **arguments):
        try:
            self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.log.seek(0)
            written = self.log.read().decode(errors="replace")[-4000:]
            raise RuntimeError(
                f"A worker ended while it was asked for `{call}`. It wrote:\n{written}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"A worker failed on `{call}` with {arguments}:\n{answer['error']}")
        return answer["result"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.process.stdout.close()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def run_case(module, case, environment, timeout=None):
    """Runs a module with `--case` in a process of its own, and returns the process after its end."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, "--case", json.dumps(case)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
