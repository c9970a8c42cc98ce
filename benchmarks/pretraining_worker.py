"""`python -m benchmarks.pretraining_worker`: a process that trains one model on command, like `benchmarks.worker`."""

import queue
import threading
import time

from benchmarks import memory
from benchmarks.sizes import Sizes
from benchmarks.worker import Worker, libraries, main

OURS = {
    "ours": {},
    "ours_bfloat16": {"dtype": "mixed_bfloat16"},
    "ours_original_adamw": {"optimizer": "original_adamw"},
}
PACKINGS = {"ours_packed": "block_diagonal", "ours_bucketed": "none"}
ENDLESS = 10**9  # steps of a `fit` that its callback ends


class PretrainingWorker(Worker):
    def _prepare(self, name, sizes, seed):
        libraries("bert4keras" if name == "original" else "ours")
        self.name, self.sizes, self.seed = name, Sizes(**sizes), seed
        self.baseline = memory.resident()

    # === projection ===

    def compare_projections(self, sizes, seed, batch, length):
        """See `pretraining_ours.compare_projections`."""
        self._prepare("ours", sizes, seed)
        from benchmarks import pretraining_ours as ours

        return ours.compare_projections(self.sizes, seed, batch, length)

    def build_projection(self, sizes, seed):
        self._prepare("ours", sizes, seed)
        self.pretrainers, self.projections = {}, {}

    def run_projection(self, projection, batch, length):
        """Times one step of a fit. The first call builds the model, which the projections share."""
        from benchmarks import pretraining_ours as ours

        if projection not in self.pretrainers:
            task = next((p.task for p in self.pretrainers.values()), None)
            cls = {"masked": ours.Pretrainer, "full": ours.FullProjection}[projection]
            pretrainer = ours.make_pretrainer(self.sizes, self.seed, cls=cls, task=task)
            self.pretrainers[projection] = pretrainer
            batches = ours.ready_batches(self.seed, self.sizes, batch, length)
            self.projections[projection] = self._turns(pretrainer, batches)
        return self._timed(self.projections[projection], 1)

    # === ready batches ===

    def build_training(self, name, sizes, seed, batch, length):
        self._prepare(name, sizes, seed)
        if name == "original":
            from benchmarks import pretraining_original as original

            rows = make_rows(seed, self.sizes, 64, length)
            # among random ids, any may stand for [MASK]
            batches = original.rows_dataset(rows, batch, self.sizes.vocabulary, mask_id=4)
            self.turns = self._turns(original.build(self.sizes, seed), batches)
        else:
            from benchmarks import pretraining_ours as ours

            pretrainer = ours.make_pretrainer(self.sizes, seed, **OURS[name])
            self.turns = self._turns(
                pretrainer, ours.ready_batches(seed, self.sizes, batch, length)
            )

    def run_training(self, steps):
        """Times some steps of `fit`."""
        return self._timed(self.turns, steps)

    def _turns(self, model, batches, count=lambda logs: {}):
        # the steps of one `fit`, because the end of a `fit` may wait for TensorFlow's threads
        options = {"steps_per_epoch": ENDLESS, "verbose": 0}
        if self.name == "original":
            from bert4keras.backend import keras
        else:
            import keras

            options["shuffle"] = False

        def fit(callback):
            model.fit(batches, callbacks=[callback], **options)

        return Turns(fit, keras.callbacks.Callback, count)

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

            def count(logs):  # the input counts its sequences itself
                return {}
        else:
            from benchmarks import pretraining_ours as ours

            model = ours.make_pretrainer(self.sizes, seed, optimizer="original_adamw")
            packing = PACKINGS[name]
            self.input = ours.TextInput(path, vocabulary, batch, length, cache, packing, seed)

            def count(logs):
                return {"tokens": logs["tokens"], "places": logs["tokens"] / (1 - logs["padding"])}

        self.turns = None
        self.start = lambda: self._turns(model, self.input.dataset, count)
        return {"seconds_to_prepare": getattr(self.input, "seconds_to_prepare", None)}

    def input_alone(self, batches):
        """Returns the tokens and the seconds of the input without training.

        Ours makes whole windows of batches at once and ahead, so it is timed over windows, from the second one until
        there were enough batches. The original makes a batch when it is asked for one.
        """
        if self.name == "original":
            iterator = iter(self.input.dataset)
            next(iterator)
            self.input.count(1)
            start = time.perf_counter()
            for _ in range(batches):
                next(iterator)
            seconds = time.perf_counter() - start
            return {"tokens": self.input.count(batches)["tokens"], "seconds": seconds}
        tokens = count = 0
        window = start = None
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
        """Times the next steps of one long `fit`."""
        if self.turns is None:
            self.turns = self.start()
        answer = self.turns.run(steps)
        answer["peak_mb"] -= self.baseline
        return {**answer, **(self.input.count(steps) if self.name == "original" else {})}

    def end(self):
        self.turns.end()


class _Ended(Exception):
    pass


class Turns:
    """One `fit` on one stream of batches that runs some steps at a time, and waits while others have their turn.

    Args:
        fit: function that takes a callback and calls `fit` with it, for as many steps as it takes.
        callback_class: `keras.callbacks.Callback` of Keras 2 or 3.
        count: function from a step's logs to its `tokens` and `places`, positions with padding included.
    """

    def __init__(self, fit, callback_class, count):
        self.asked, self.done = queue.Queue(), queue.Queue()
        callback = _make_callback(callback_class, self.asked, self.done, count)

        def train():
            try:
                fit(callback)
                self.done.put(RuntimeError("The training came to an end."))
            except _Ended:
                pass
            except BaseException as error:
                self.done.put(error)

        self.thread = threading.Thread(target=train, daemon=True)
        self.thread.start()

    def run(self, steps):
        """Returns seconds, tokens, places and the peak of memory of the next steps."""
        self.asked.put(steps)
        answer = self.done.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self):
        self.asked.put(0)
        self.thread.join(60)


def _make_callback(callback_class, asked, done, count):
    """Makes a callback that waits before a step for a number of steps, and reports what they took."""

    class Pausing(callback_class):
        left = 0
        cpu = None

        def on_train_batch_begin(self, batch, logs=None):
            if self.left:
                return
            self.left = asked.get()
            if not self.left:
                raise _Ended
            now = time.process_time()
            # what the input continued to do while others had their turn
            self.waiting_cpu = 0.0 if self.cpu is None else now - self.cpu
            memory.reset_peak()
            self.counts = {"tokens": 0.0, "places": 0.0}
            self.steps, self.start = self.left, time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            for name, value in count(logs).items():
                self.counts[name] += value
            self.left -= 1
            if self.left:
                return
            seconds = time.perf_counter() - self.start
            self.cpu = time.process_time()
            answer = {"seconds": seconds, "cpu_seconds_while_waiting": self.waiting_cpu}
            done.put({**answer, "steps": self.steps, "peak_mb": memory.peak(), **self.counts})

    return Pausing()


def make_rows(seed, sizes, count, length):
    """Makes lists of random token ids."""
    import numpy as np

    rng = np.random.default_rng([seed, count, length])
    return rng.integers(5, sizes.vocabulary, (count, length)).tolist()


if __name__ == "__main__":
    main(PretrainingWorker())
