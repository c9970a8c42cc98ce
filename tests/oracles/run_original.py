"""The tests' side of the original implementation: starts its process once and sends requests."""

import functools
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path


class Original:
    """bert4keras 0.11.5 itself, in one process for the whole test run.

    Its methods are the functions of `original.py`, which run there: `original.forward(...)` returns
    what `forward(...)` returns. The process starts with the first call (about five seconds) and
    ends with `close`.
    """

    def __init__(self):
        self._process = None
        self._log = None

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._ask, name)

    def close(self):
        """Ends the process if it has started."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process.stdout.close()
            self._log.close()
            self._process = None

    def _ask(self, name, /, *arguments, **options):
        if self._process is None:
            self._log = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("original.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        try:
            pickle.dump((name, arguments, options), self._process.stdin)
            self._process.stdin.flush()
            kind, value = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            self._process = None  # the next request starts another
            self._log.seek(0)
            raise RuntimeError(
                f"The process that runs bert4keras ended during the request `{name}`. It needs "
                "bert4keras==0.11.5 (pip install --no-deps) and tf-keras, which `make test` "
                f"installs. It wrote:\n{self._log.read().decode(errors='replace')[-4000:]}"
            ) from error
        if kind == "error":
            raise RuntimeError(f"bert4keras failed on `{name}`:\n{value}")
        return value


def small_config(**changes) -> dict:
    """Returns a `bert_config.json` of the golden size: 2 layers, 4 heads, width 32, 200 tokens."""
    return {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "type_vocab_size": 2,
        "vocab_size": 200,
        **changes,
    }
