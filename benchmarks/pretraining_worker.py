"""A process that trains one model on command, as `benchmarks/worker.py`: `python -m benchmarks.pretraining_worker`."""

import time

from benchmarks import memory
from benchmarks.pretraining_turns import ENDLESS, Turns
from benchmarks.sizes import Sizes
from benchmarks.worker import Worker, libraries, main

OURS = {
    "ours": {},
    "ours_bfloat16": {"dtype": "mixed_bfloat16"},
    "ours_original_adamw": {"optimizer": "original_adamw"},
}
PACKINGS = {"ours_packed": "block_diagonal", "ours_bucketed": "none"}


class PretrainingWorker(Worker):
    def _prepare(self, name, sizes, seed):
        libraries("bert4keras" if name == "original" else "ours")
        self.name, self.sizes, self.seed = name, Sizes(**sizes), seed
        self.baseline = memory.resident()

    # === projection ===

    def compare_projections(self, sizes, seed, batch, length):
        """See `pretraining_ours.compare_projections`."""
        self._prepare("ours", sizes, seed)
        from benchmarks import pretraining_ours

        return pretraining_ours.compare_projections(self.sizes, seed, batch, length)

    def build_projection(self, sizes, seed):
        self._prepare("ours", sizes, seed)
        self.pretrainers, self.projections = {}, {}

    def run_projection(self, projection, batch, length):
        """One step of a fit. The model is made by the first, and the projections share it."""
        from benchmarks import pretraining_ours as ours

        if projection not in self.pretrainers:
            task = next((p.task for p in self.pretrainers.values()), None)
            cls = {"masked": ours.Pretrainer, "full": ours.FullProjection}[projection]
            self.pretrainers[projection] = ours.make_pretrainer(
                self.sizes, self.seed, cls=cls, task=task
            )
            data = ours.ready_batch(self.seed, self.sizes, batch, length)
            self.projections[projection] = self._turns(
                lambda callback: ours.fit(self.pretrainers[projection], data, callback)
            )
        return self._timed(self.projections[projection], 1)

    # === ready batches ===

    def build_training(self, name, sizes, seed, batch, length):
        self._prepare(name, sizes, seed)
        if name == "original":
            from benchmarks import pretraining_original as original

            model = original.build(self.sizes, seed)
            rows = make_rows(seed, self.sizes, 64, length)
            # any id may stand for [MASK] among random ones
            data = original.rows_dataset(rows, batch, self.sizes.vocabulary, mask_id=4)
            options = {"steps_per_epoch": ENDLESS, "verbose": 0}
            self.turns = self._turns(
                lambda callback: model.fit(data, callbacks=[callback], **options)
            )
        else:
            from benchmarks import pretraining_ours as ours

            pretrainer = ours.make_pretrainer(self.sizes, seed, **OURS[name])
            data = ours.ready_batch(seed, self.sizes, batch, length)
            self.turns = self._turns(lambda callback: ours.fit(pretrainer, data, callback))

    def run_training(self, steps):
        """Some steps by `fit`."""
        return self._timed(self.turns, steps)

    def _turns(self, fit):
        # steps of one `fit`: the end of a `fit` may wait for TensorFlow's threads
        if self.name == "original":
            from bert4keras.backend import keras
        else:
            import keras
        return Turns(fit, keras.callbacks.Callback, lambda logs: {})

    def _timed(self, turns, steps):
        answer = turns.run(steps)
        return {"seconds": answer["seconds"], "peak_mb": answer["peak_mb"] - self.baseline}

    # === real documents ===

    def build_end_to_end(self, name, sizes, seed, path, vocabulary, batch, length, cache):
        self._prepare(name, sizes, seed)
        if name == "original":
            from benchmarks import pretraining_original as original

            model = original.build(self.sizes, seed)
            self.input = original.TextInput(path, vocabulary, batch, length)
            from bert4keras.backend import keras

            # the rows are counted where they are made
            def sums(logs):
                return {}
        else:
            import keras

            from benchmarks import pretraining_ours as ours

            model = ours.make_pretrainer(self.sizes, seed, optimizer="original_adamw")
            packing = PACKINGS[name]
            self.input = ours.TextInput(path, vocabulary, batch, length, cache, packing, seed)

            def sums(logs):
                return {"tokens": logs["tokens"], "places": logs["tokens"] / (1 - logs["padding"])}

        self.turns = None

        def fit(callback):
            options = {} if name == "original" else {"shuffle": False}
            model.fit(
                self.input.dataset,
                steps_per_epoch=ENDLESS,
                callbacks=[callback],
                verbose=0,
                **options,
            )

        self.start = lambda: Turns(fit, keras.callbacks.Callback, sums)
        return {"seconds_to_prepare": getattr(self.input, "seconds_to_prepare", None)}

    def input_alone(self, batches):
        """Tokens per second of the input without training.

        Ours makes whole windows of batches at once and ahead: it is timed over windows, from the second one on, until
        there were so many batches. The original makes a batch when it is asked for one.
        """
        tokens = count = 0
        start = None
        if self.name == "original":
            iterator = iter(self.input.dataset)
            next(iterator)
            self.input.count()
            start = time.perf_counter()
            for _ in range(batches):
                next(iterator)
            seconds = time.perf_counter() - start
            return {"tokens": self.input.count()["tokens"], "seconds": seconds}
        window = None
        for batch in self.input.dataset:
            here = int(batch["window"][0])
            if here != window:
                now, window = time.perf_counter(), here
                if here == 1:
                    start = now
                if here > 1 and count >= batches:
                    break
            if here:
                count += 1
                tokens += int(batch["padding_mask"].numpy().sum())
        return {"tokens": tokens, "seconds": now - start}

    def run_end_to_end(self, steps):
        """The next steps of one long `fit`."""
        if self.turns is None:
            self.turns = self.start()
        if self.name == "original":
            self.input.lengths = []
        answer = self.turns.run(steps)
        answer["peak_mb"] -= self.baseline
        return {**answer, **(self.input.count() if self.name == "original" else {})}

    def end(self):
        self.turns.end()


def make_rows(seed, sizes, count, length):
    """Lists of random token ids."""
    import numpy as np

    rng = np.random.default_rng([seed, count, length])
    return rng.integers(5, sizes.vocabulary, (count, length)).tolist()


if __name__ == "__main__":
    main(PretrainingWorker())
