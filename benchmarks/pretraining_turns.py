"""Training that stands still while others have their turn."""

import queue
import threading
import time

from benchmarks import memory

# steps of a `fit` that its callback ends
ENDLESS = 10**9


class _Ended(Exception):
    pass


def pausing(callback_class, asked, done, sums):
    """A callback of Keras 2 or 3: waits before a step for a number of steps, and says what they took."""

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
            # what the input went on doing while others had their turn
            self.waiting_cpu = 0.0 if self.cpu is None else now - self.cpu
            memory.reset_peak()
            self.counts = {"tokens": 0.0, "places": 0.0}
            self.steps, self.start = self.left, time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            for name, value in sums(logs).items():
                self.counts[name] += value
            self.left -= 1
            if self.left:
                return
            seconds = time.perf_counter() - self.start
            self.cpu = time.process_time()
            answer = {"seconds": seconds, "cpu_seconds_while_waiting": self.waiting_cpu}
            done.put({**answer, "steps": self.steps, "peak_mb": memory.peak(), **self.counts})

    return Pausing()


class Turns:
    """One `fit` on one stream of batches, some steps at a time.

    Args:
        fit: function (callback), calls `fit` with it for as many steps as it takes.
        callback_class: `keras.callbacks.Callback`, of Keras 2 or 3.
        sums: function from a step's logs to its `tokens` and `places`, padding included.
    """

    def __init__(self, fit, callback_class, sums):
        self.asked, self.done = queue.Queue(), queue.Queue()
        callback = pausing(callback_class, self.asked, self.done, sums)

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
        """Seconds, tokens, places and the peak of memory of the next steps."""
        self.asked.put(steps)
        answer = self.done.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self):
        self.asked.put(0)
        self.thread.join(60)
