"""What ends a run early, and how: signals, and steps with NaN."""

import signal
import threading

import keras

from roformer_tf.pretraining.callbacks import log_number


class SaveCheckpoints(keras.callbacks.Callback):
    """Calls `save` after every `every` steps of the run, after a signal, and at the end of `fit`.

    With `together` there are other workers, which must all stop after the same step. Then a signal
    asks the pretrainer, and all workers see in its logs that one wants to stop.
    """

    def __init__(self, save, every, signals, together=False):
        super().__init__()
        self._save, self._every, self._signals, self._together = save, every, signals, together
        self._step = self._saved = 0

    def on_train_begin(self, logs=None):
        self._step = self._saved = self.model.steps_done
        self._signals.defer = self._together

    def on_train_batch_begin(self, batch, logs=None):
        # from here on there is a step to lose
        self._signals.defer = True
        if self._together and self._signals.received:
            self.model.ask_to_stop()

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._together and log_number(logs["stop"]):
            self._signals.received = self._signals.received or signal.SIGTERM
            self.model.stop_training = True
        elif self._signals.received and not self._together:
            self.model.stop_training = True
        if self._step % self._every == 0 or self.model.stop_training:
            self._save_once()
            self._signals.defer = self._together or self.model.stop_training

    def on_train_end(self, logs=None):
        self._signals.defer = True
        self._save_once()

    def _save_once(self):
        if self._step > self._saved:
            self._save()
            self._saved = self._step


class StopWhenSkipping(keras.callbacks.Callback):
    """Ends the run after `limit` consecutive steps with NaN or infinite gradients."""

    def __init__(self, limit, newest_checkpoint):
        super().__init__()
        self._limit, self._newest_checkpoint = limit, newest_checkpoint

    def on_train_batch_end(self, batch, logs=None):
        skipped = round(log_number(logs["skipped_in_a_row"]))
        if skipped >= self._limit:
            raise FloatingPointError(
                f"{skipped} steps in a row had NaN or infinite gradients and were skipped, so the "
                "run stops with the weights from before them. Last checkpoint: "
                f"{self._newest_checkpoint() or 'none yet'}. Try a lower `learning_rate`, a longer "
                "warm-up (`learning_rate_factors`), `clip_norm` = 1.0, or `dtype` = 'float32' "
                "instead of 'mixed_float16'. Then start again with --allow-changes to resume."
            )


class DelaySignals:
    """Context in which SIGTERM and the first SIGINT (Ctrl-C) end the run without losing steps.

    If there are steps that no checkpoint has, the signal is noted: the running step ends, a
    checkpoint is written, and `fit` returns. Otherwise, such as while texts are read, the process
    exits at once.
    """

    def __init__(self):
        self.received = None  # number of the signal
        self.defer = False  # whether signals are only noted
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        again = self.received is not None and number == signal.SIGINT
        self.received = number
        if again or not self.defer:
            raise SystemExit(128 + number)
