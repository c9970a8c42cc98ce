"""A process that trains and predicts with one library: `python -m benchmarks.compat_bert4keras_worker`."""

import os
import time

import numpy as np

from benchmarks.sizes import Sizes
from benchmarks.worker import Worker, libraries, main


class CompatWorker(Worker):
    def build(self, side, text, sizes, seed):
        """Makes the model that a program defines."""
        os.environ["TF_KERAS"] = "1"  # bert4keras' own Adam on both sides
        libraries(side)
        self.names, self.sizes = {}, Sizes(**sizes)
        exec(text, self.names)
        self.model = self.names["build"](self.sizes.config())

    def run(self, task, batch, length, steps, seed):
        """Times calls; returns the mean. The first batches of a process are the same on both sides."""
        rng = np.random.default_rng(seed)
        if task == "one":
            batch, steps = 1, 10 * steps
        batches = self.names["batches"](rng, self.sizes.vocabulary, batch, length)
        if task == "step":
            start = time.perf_counter()
            self.model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)
            return {"seconds": (time.perf_counter() - start) / steps}
        inputs = [next(batches)[0] for _ in range(steps)]
        start = time.perf_counter()
        for x in inputs:
            self.model.predict(x, verbose=0)
        return {"seconds": (time.perf_counter() - start) / steps}


if __name__ == "__main__":
    main(CompatWorker())
