import math
import time

import keras
import numpy as np

from roformer_tf.checks import check_positive_integer

# what `train_step` returns for every step; `input_ready` may come with it
LOGS = ("loss", "accuracy", "learning_rate", "tokens", "padding", "skipped")


class StepCallback(keras.callbacks.Callback):
    """Base of the callbacks that show a pretraining run: knows where the run is and gathers what the steps report.

    The run loop calls `begin_stage` before each `fit`, so that the steps are counted over the whole run, however often
    it was stopped. A subclass implements `record`, which gets a row for every `every` steps.

    `train_step` must return, for the global batch, `loss`, `accuracy`, `learning_rate`, `tokens` (those that are no
    padding), `padding` (the share of places with no token) and `skipped` (steps so far that changed nothing, since a
    gradient was not finite). It may return `input_ready`, the `tf.timestamp()` at which the step had its batch, for
    the share of the time spent waiting for input.

    Args:
        stages: list of `Stage`, the whole run.
        every: positive integer, steps per row. Rows end at steps that are multiples of it, at the end of a `fit`, and
            where `flush` is called.

    Raises:
        ValueError: if there are no stages or `every` is not positive.

    Example:

    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.step_callback import StepCallback
    >>> class Printer(StepCallback):
    ...     def record(self, row):
    ...         print(row["step"], row["stage"], row["stage_step"], row["loss"], row["tokens"])
    >>> printer = Printer([Stage(128, 8, 10, 1e-4), Stage(512, 2, 10, 1e-4)], every=2)
    >>> printer.begin_stage(1, stage_step=2)  # which keras.Model.fit goes on with
    >>> logs = {"accuracy": 0.1, "learning_rate": 1e-4, "padding": 0.0, "skipped": 0}
    >>> printer.on_epoch_begin(0)
    >>> for batch, (loss, tokens) in enumerate([(4.0, 1000), (2.0, 3000), (8.0, 1000)]):
    ...     printer.on_train_batch_begin(batch)
    ...     printer.on_train_batch_end(batch, {**logs, "loss": loss, "tokens": tokens})
    14 2 4 2.5 4000
    >>> printer.on_epoch_end(0)
    15 2 5 8.0 1000
    """

    def __init__(self, stages, every=1):
        super().__init__()
        self.stages = list(stages)
        if not self.stages:
            raise ValueError("`stages` must hold at least one Stage. Received: stages=[]")
        check_positive_integer("every", every)
        self.every = every
        self.stage_index = None
        self.stage_step = self.step = 0
        self._pending = []

    @property
    def stage(self):
        """The `Stage` that runs."""
        return self.stages[self.stage_index]

    def begin_stage(self, stage_index, stage_step=0):
        """Says where the steps of the next `fit` belong; call it before each.

        Args:
            stage_index: integer from 0, which of the stages.
            stage_step: integer, steps of this stage that are done already.

        Raises:
            ValueError: if there is no such stage or step.
        """
        if not 0 <= stage_index < len(self.stages):
            raise ValueError(
                f"`stage_index` must be from 0 to {len(self.stages) - 1}. Received: stage_index={stage_index}"
            )
        if not 0 <= stage_step <= self.stages[stage_index].steps:
            raise ValueError(
                f"`stage_step` must be from 0 to {self.stages[stage_index].steps}, the steps of the stage. "
                f"Received: stage_step={stage_step}"
            )
        self.stage_index, self.stage_step = stage_index, stage_step
        self.step = sum(stage.steps for stage in self.stages[:stage_index]) + stage_step
        self._pending = []

    def record(self, row):
        """Hook of the subclasses: takes one row.

        Args:
            row: dict of `step` and `stage_step` (the last of the row), `stage` (from 1), `max_length`, `tokens` and
                `seconds` (of these steps), `loss`, `accuracy` and `padding` (means over these steps, each weighted by
                its tokens or places; a step whose loss is not finite counts in neither loss nor accuracy),
                `learning_rate` and `skipped` (of the last step), `tokens_per_second`, and `input_wait`, the share of
                the time spent waiting for input, or None.
        """

    def log_held_out(self, loss, accuracy):
        """Hook of the subclasses: takes loss and accuracy on held-out text, for the current step."""

    def flush(self):
        """Ends the current row; call it before a checkpoint is written, so that rows and checkpoints agree."""
        self._end_row()

    def on_epoch_begin(self, epoch, logs=None):
        if self.stage_index is None:
            raise RuntimeError(
                f"{type(self).__name__} does not know which stage runs: call begin_stage(stage_index, stage_step) "
                "before fit()."
            )
        self._step_ended = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        self._step_began = time.time()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.step += 1
        self.stage_step += 1
        self._pending.append(self._row(logs or {}, seconds=now - self._step_ended))
        self._step_ended = now
        if self.step % self.every == 0:
            self._end_row()

    def on_epoch_end(self, epoch, logs=None):
        self.flush()

    def _end_row(self):
        if self._pending:
            row, self._pending = merge_rows(self._pending), []
            self.record(row)

    def _row(self, logs, seconds):
        missing = [name for name in LOGS if name not in logs]
        if missing:
            raise ValueError(
                f"{type(self).__name__} needs the logs {', '.join(LOGS)} of every step. Received: "
                f"{', '.join(sorted(logs)) or 'none'}; return {', '.join(missing)} from `train_step` too"
            )
        values = {name: log_number(logs[name]) for name in LOGS}
        row = {
            "step": self.step,
            "stage": self.stage_index + 1,
            "stage_step": self.stage_step,
            "max_length": self.stage.max_length,
            **values,
            "tokens": round(values["tokens"]),
            "skipped": round(values["skipped"]),
            "tokens_per_second": values["tokens"] / max(seconds, 1e-9),
            "seconds": seconds,
            "input_wait": None,
        }
        if "input_ready" in logs:
            wait = log_number(logs["input_ready"]) - self._step_began
            row["input_wait"] = min(max(wait / max(seconds, 1e-9), 0.0), 1.0)
        return row


def merge_rows(rows):
    """One row for several that follow each other, see `StepCallback.record`."""
    if len(rows) == 1:
        return rows[0]
    tokens = np.array([row["tokens"] for row in rows], "float64")
    seconds = np.array([row["seconds"] for row in rows])
    places = tokens / np.maximum(1 - np.array([row["padding"] for row in rows]), 1e-9)
    finite = [math.isfinite(row["loss"]) for row in rows]

    def mean(name, weights, chosen=None):
        values = np.array([row[name] for row in rows])
        if chosen is not None:
            values, weights = values[chosen], weights[chosen]
        total = weights.sum()
        return float((values * weights).sum() / total) if total else math.nan

    waits = [row["input_wait"] for row in rows]
    return {
        **rows[-1],
        "tokens": int(tokens.sum()),
        "loss": mean("loss", tokens, finite),
        "accuracy": mean("accuracy", tokens, finite),
        "padding": mean("padding", places),
        "seconds": float(seconds.sum()),
        "tokens_per_second": float(tokens.sum() / max(seconds.sum(), 1e-9)),
        "input_wait": None if None in waits else mean("input_wait", seconds),
    }


def log_number(value):
    """A value of the logs as a float; under several workers it comes with shape (1,)."""
    return float(np.asarray(value).reshape(-1)[0])
