"""A process that holds one model and runs it on command: `python -m benchmarks.worker`.

A command is a line of JSON on standard input, `{"call": name, ...arguments}`; the answer is a line of JSON.
"""

import gc
import json
import os
import sys
import time
import traceback
from importlib import metadata

from benchmarks import memory
from benchmarks.sizes import QUICK, Sizes, make_batch


class Worker:
    def build(self, implementation, task, sizes, seed):
        """Builds the model; the memory that its libraries take is not counted as its own.

        A small model runs before, as libraries map most of their code when they first run it.
        """
        from benchmarks import models

        self.sizes, self.seed = Sizes(**sizes), seed
        libraries(implementation)
        models.build(implementation, task, QUICK, seed)(make_batch(seed, QUICK, 2, 32))
        gc.collect()
        self.baseline = memory.resident()
        self.run_model = models.build(implementation, task, self.sizes, seed)
        self.batches = {}
        return {"libraries_mb": self.baseline}

    def run(self, batch, length):
        """Times one run."""
        data = self.batches.setdefault(
            (batch, length), make_batch(self.seed, self.sizes, batch, length)
        )
        memory.reset_peak()
        start = time.perf_counter()
        self.run_model(data)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak_mb": memory.peak() - self.baseline}

    def tokenizers(self, library, **arguments):
        """Makes a library's tokenizers; see `benchmarks/tokenizers.py`."""
        from benchmarks.tokenizers import Tokenizing

        self.tokenizing = Tokenizing(library, **arguments)
        return {"seconds_to_make": self.tokenizing.seconds_to_make}

    def tokenize(self, **arguments):
        """Times one run over all lines."""
        return self.tokenizing.run(**arguments)

    def token_digests(self, level):
        return self.tokenizing.digests(level)

    def make_checkpoint(self, library, folder, sizes):
        """See `benchmarks/loading.py`."""
        from benchmarks import loading

        return loading.make_checkpoint(library, folder, Sizes(**sizes))

    def load(self, library, folder):
        """See `benchmarks/loading.py`."""
        from benchmarks import loading

        libraries(library)
        return loading.load(library, folder)

    def versions(self):
        """Returns the versions of what this process has imported."""
        names = ("tensorflow", "keras", "keras_hub", "tf_keras", "bert4keras", "torch")
        names += ("transformers", "tokenizers", "numpy", "jieba", "rjieba")
        # not a module's own: "keras" is an empty stand-in where bert4keras runs
        return {name: metadata.version(name) for name in names if name in sys.modules}


def libraries(implementation):
    """Imports what an implementation stands on, and runs one operation, which starts its threads."""
    from benchmarks import models

    if implementation.startswith("hugging_face"):
        import torch
        import transformers  # noqa: F401

        torch.set_num_threads(models.THREADS)
        torch.ones(2, 2) @ torch.ones(2, 2)
        from transformers import RoFormerForMaskedLM  # noqa: F401
    elif implementation == "bert4keras":
        tf = models.import_bert4keras()
        tf.matmul(tf.ones((2, 2)), tf.ones((2, 2)))
    else:
        if implementation == "bare" or implementation.startswith("ours"):
            # before TensorFlow, as its users do: it turns oneDNN on without AVX-512 too
            import roformer_tf  # noqa: F401
        tf = models.import_tensorflow()
        tf.matmul(tf.ones((2, 2)), tf.ones((2, 2)))


def main(worker=None):
    """Answers commands with the methods of a worker."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print goes elsewhere
    worker = worker or Worker()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"result": getattr(worker, command.pop("call"))(**command)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
