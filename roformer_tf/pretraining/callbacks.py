"""Callbacks of a run: its logs, which continue exactly after a kill, and an end to steps with NaN."""

import contextlib
import itertools
import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from roformer_tf.checks import check_positive_integer
from roformer_tf.files import flush_to_disk, replace_file

# what `train_step` returns for every step; `input_ready` may come with it
LOGS = ("loss", "accuracy", "predictions", "learning_rate", "tokens", "padding", "skipped")
LOG_COLUMNS = (
    *("step", "stage", "stage_step", "max_length", "tokens", "loss", "accuracy", "learning_rate"),
    *("padding", "skipped", "tokens_per_second", "seconds", "input_wait"),
)
HELD_OUT_COLUMNS = ("stage", "step", "tokens", "loss", "accuracy")
TASK_COLUMNS = ("step", "stage", "task", "steps", "loss", "accuracy")
HELD_OUT_TASK_COLUMNS = ("stage", "step", "task", "loss", "accuracy", "predictions")
# tag in TensorBoard, which groups by the part before the slash -> name in the row
TAGS = {
    "train/loss": "loss",
    "train/accuracy": "accuracy",
    "train/learning_rate": "learning_rate",
    "train/skipped_steps": "skipped",
    "input/tokens_per_second": "tokens_per_second",
    "input/padding": "padding",
    "input/wait": "input_wait",
    "stage/number": "stage",
    "stage/max_length": "max_length",
}
_file_numbers = itertools.count()


class CsvLog:
    """A CSV file of numbers and names that survives a kill at any moment and continues exactly.

    `keras.callbacks.CSVLogger` writes a row per epoch, and appends to whatever a killed process
    left. Here each row is one write that can be read at once. What a killed process leaves of a
    last row is never read as one, and `keep` removes it, together with the rows of steps that will
    run again. The first row creates the file, with the names of the columns as its first line.
    """

    def __init__(self, path, columns):
        self.path = Path(path)
        self.columns = tuple(columns)
        self._header = ",".join(columns) + "\n"

    def append(self, row):
        """Writes a row: a dict from column to int, float, str without commas, or None (empty)."""
        line = ",".join(_format(row[name]) for name in self.columns) + "\n"
        try:
            with open(self.path, "ab", buffering=0) as file:
                data = (line if file.tell() else self._header + line).encode()
                if file.write(data) != len(data):
                    raise OSError("only a part of the row could be written; is the disk full?")
        except OSError as error:
            raise OSError(f"Cannot write the log {self.path}: {error}") from error

    def rows(self):
        """Returns all complete rows: a list of dicts from column to str, empty without a file."""
        lines = self._lines()
        for number, fields in enumerate(lines, 2):
            if len(fields) != len(self.columns):
                raise ValueError(
                    f"{self.path}, line {number}: expected {len(self.columns)} values. "
                    f"Received: {','.join(fields)!r}; delete the line"
                )
        return [dict(zip(self.columns, fields)) for fields in lines]

    def keep(self, wanted):
        """Removes rows, and all lines that are not rows, by an atomic write.

        Returns the rows that stay: those for which `wanted(row)` is true and no `ValueError`.
        """
        rows = []
        for fields in self._lines():
            row = dict(zip(self.columns, fields))
            with contextlib.suppress(ValueError):
                if len(fields) == len(self.columns) and wanted(row):
                    rows.append(row)
        data = (self._header + "".join(",".join(row.values()) + "\n" for row in rows)).encode()
        if self.path.exists() and data != self.path.read_bytes():
            with replace_file(self.path) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        return rows

    def sync(self):
        """Returns when the rows are on the disk, where a power failure does not reach them."""
        if self.path.exists():
            flush_to_disk(self.path)

    def _lines(self):
        """The values of each complete line after the header."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        header, end, rest = text.partition("\n")
        if header.rstrip("\r") + "\n" != self._header if end else not self._header.startswith(text):
            raise ValueError(
                f"{self.path} is not the log of a pretraining run: expected the columns "
                f"{','.join(self.columns)}. Received: {header[:200]!r}"
            )
        # what follows the last line's end is not a line
        return [line.rstrip("\r").split(",") for line in rest.split("\n")[:-1]]


def _format(value):
    if value is None:
        return ""
    return str(value) if isinstance(value, int | str) else f"{value:.7g}"


class StepCallback(keras.callbacks.Callback):
    """Base class of the callbacks that show a run: counts steps over all stages, averages the logs.

    Call `begin_stage` before each `fit`. Then steps are those of the whole run, however often it
    was stopped. A subclass implements `record`, which receives a row for every `every` steps.

    `train_step` must return, for the global batch, `loss` and `accuracy`, the number of
    `predictions` that they are means of, `learning_rate`, `tokens` (padding not counted), `padding`
    (share of the positions) and `skipped` (steps so far that changed nothing because a gradient was
    not finite). It may return `input_ready`, the `tf.timestamp()` at which the step had its batch,
    to measure the time spent waiting for input. Steps that are traced do not measure it, if the
    model counts them in `traces`.

    Args:
        stages: list of `Stage`. The whole run.
        every: int. Steps per row. A row ends at each multiple of it, at the end of `fit`, and when
            `flush` is called.
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
        """The current `Stage`."""
        return self.stages[self.stage_index]

    def begin_stage(self, stage_index, stage_step=0):
        """Sets the stage of the next `fit`, from 0, and how many of its steps are done already."""
        if not 0 <= stage_index < len(self.stages):
            raise ValueError(
                f"`stage_index` must be from 0 to {len(self.stages) - 1}. "
                f"Received: stage_index={stage_index}"
            )
        if not 0 <= stage_step <= self.stages[stage_index].steps:
            raise ValueError(
                f"`stage_step` must be from 0 to {self.stages[stage_index].steps}, the steps of "
                f"the stage. Received: stage_step={stage_step}"
            )
        self.stage_index, self.stage_step = stage_index, stage_step
        self.step = sum(stage.steps for stage in self.stages[:stage_index]) + stage_step
        self._pending = []

    def record(self, row):
        """Receives a row; see `merge_rows`. Subclasses override it."""

    def log_held_out(self, loss, accuracy):
        """Receives loss and accuracy on held-out text at the current step."""

    def flush(self):
        """Ends the current row. Call it before saving a checkpoint, so that both agree."""
        self._end_row()

    def on_epoch_begin(self, epoch, logs=None):
        if self.stage_index is None:
            raise RuntimeError(
                f"{type(self).__name__} does not know which stage runs: call "
                "begin_stage(stage_index, stage_step) before fit()."
            )
        self._step_ended = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        self._step_began, self._traces = time.time(), self._count_traces()

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

    def _count_traces(self):
        return getattr(self.model, "traces", None)

    def _row(self, logs, seconds):
        missing = [name for name in LOGS if name not in logs]
        if missing:
            raise ValueError(
                f"{type(self).__name__} needs the logs {', '.join(LOGS)} of every step. Received: "
                f"{', '.join(sorted(logs)) or 'none'}; return {', '.join(missing)} from "
                "`train_step` too"
            )
        values = {name: log_number(logs[name]) for name in LOGS}
        if not values["predictions"]:  # a mean of nothing, which would look like a perfect one
            values["loss"] = values["accuracy"] = math.nan
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
        if "input_ready" in logs and self._count_traces() == self._traces:
            wait = log_number(logs["input_ready"]) - self._step_began
            row["input_wait"] = min(max(wait / max(seconds, 1e-9), 0.0), 1.0)
        return row


class RunLog(StepCallback):
    """Writes each row to `log.csv`, and results on held-out text to `held_out.csv`.

    Columns of `log.csv`: `step` (of the run, from 1), `stage` (from 1), `stage_step`, `max_length`,
    `tokens` (trained on since the run began, padding not counted), `loss` and `accuracy` (NaN
    without predictions), `learning_rate`, `padding` (share of the positions), `skipped` (steps
    skipped so far), `tokens_per_second`, `seconds` (since the run began, without what a crash
    lost), and `input_wait`, the share of the time spent waiting for input, empty where it is not
    measured: if `train_step` is traced, or does not return `input_ready`. Columns of
    `held_out.csv`: `stage`, `step`, `tokens`, `loss`, `accuracy`.

    A run that continues at step k removes the rows of later steps. So, except for the times, the
    files are those of a run that was never stopped. For this, list this callback before the one
    that saves checkpoints, and call `flush` before saving. With `every` above 1, a run stopped
    between two rows has one row more. With several workers, only the chief logs.
    """

    def __init__(self, stages, folder, every=1):
        super().__init__(stages, every)
        self.folder = Path(folder)
        self._log = CsvLog(self.folder / "log.csv", LOG_COLUMNS)
        self._held_out = CsvLog(self.folder / "held_out.csv", HELD_OUT_COLUMNS)
        self._written = None  # step of the last row; None before the files were read
        self._tokens = 0

    def begin_stage(self, stage_index, stage_step=0):
        super().begin_stage(stage_index, stage_step)
        if self._written is not None and self._written <= self.step:
            return
        # remove the rows of steps that will run again, and count on from the last row
        self.folder.mkdir(parents=True, exist_ok=True)

        def wanted(row):
            counts = int(row["tokens"]) >= 0 and float(row["seconds"]) >= 0
            return counts and int(row["step"]) <= self.step

        rows = self._log.keep(wanted)
        self._held_out.keep(lambda row: int(row["step"]) <= self.step)
        last = rows[-1] if rows else {"step": 0, "tokens": 0, "seconds": 0}
        self._written, self._tokens = int(last["step"]), int(last["tokens"])
        self._began = time.monotonic() - float(last["seconds"])

    def record(self, row):
        self._tokens += row["tokens"]
        seconds = time.monotonic() - self._began
        self._log.append({**row, "tokens": self._tokens, "seconds": seconds})
        self._written = row["step"]

    def flush(self):
        super().flush()
        self._log.sync()

    def log_held_out(self, loss, accuracy):
        """Writes the row of `held_out.csv` for the current stage and step; replaces an older one."""
        here = {"stage": self.stage_index + 1, "step": self.step}
        self._held_out.keep(lambda row: any(int(row[name]) != here[name] for name in here))
        self._held_out.append(
            {**here, "tokens": self._tokens, "loss": float(loss), "accuracy": float(accuracy)}
        )


class TensorBoardLog(StepCallback):
    """Writes each row as TensorBoard events.

    `tf.summary` and Keras' own callback need the package `tensorboard`, and cannot mark a restart.
    Here every start of a run writes a file of its own that begins with this mark, so TensorBoard
    shows no step twice. Events are on disk as soon as they are written. With several workers, only
    the chief logs.

    Reference: `_CheckForRestartAndMaybePurge` in TensorBoard's `event_accumulator.py`.
    """

    def __init__(self, stages, folder, every=1):
        super().__init__(stages, every)
        self.folder = Path(folder)
        self._writer = None
        self._latest = None  # the last step with events in the file

    def begin_stage(self, stage_index, stage_step=0):
        super().begin_stage(stage_index, stage_step)
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files in the order of their names: fractions of a second keep
            # two starts apart
            name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}.{next(_file_numbers)}.v2"
            self._writer = tf.io.TFRecordWriter(str(self.folder / name))
            self._write(file_version="brain.Event:2")
        elif self._latest is None or self._latest <= self.step:
            return
        restart = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._write(step=self.step + 1, session_log=restart)
        self._latest = self.step

    def record(self, row):
        values = {tag: row[name] for tag, name in TAGS.items() if row[name] is not None}
        self._write_scalars(row["step"], values)

    def log_held_out(self, loss, accuracy):
        self._write_scalars(self.step, {"held_out/loss": loss, "held_out/accuracy": accuracy})

    def _write_scalars(self, step, values):
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=float(value))
        self._write(step=step, summary=summary)
        self._latest = step

    def _write(self, **content):
        event = tf.compat.v1.Event(wall_time=time.time(), **content)
        self._writer.write(event.SerializeToString())
        self._writer.flush()


class TaskLog(StepCallback):
    """Writes loss and accuracy of each task of a multi-task run to `tasks.csv`.

    Columns of `tasks.csv`: `step` (of the run, from 1), `stage` (from 1), `task` (its name),
    `steps` (of this task since the last row), and the means of `loss` and `accuracy` over them.
    Columns of `held_out_tasks.csv`: `stage`, `step`, `task`, `loss`, `accuracy` and the number of
    `predictions` that they are means of. Like `RunLog`, it continues exactly after a kill. `names`
    are those of the tasks by their numbers, which `train_step` returns as `task`.
    """

    def __init__(self, stages, names, folder, every=1):
        super().__init__(stages, every)
        self.names = list(names)
        self._log = CsvLog(Path(folder) / "tasks.csv", TASK_COLUMNS)
        self._held_out = CsvLog(Path(folder) / "held_out_tasks.csv", HELD_OUT_TASK_COLUMNS)

    def begin_stage(self, stage_index, stage_step=0):
        super().begin_stage(stage_index, stage_step)
        for log in (self._log, self._held_out):
            # also what a kill left of a row
            log.keep(lambda row: int(row["step"]) <= self.step)

    def record(self, row):
        self._log.append({**row, "task": self.names[row["task"]]})

    def flush(self):
        super().flush()
        self._log.sync()

    def log_held_out_task(self, name, figures):
        """Writes what `evaluate_batches` returned for a task; replaces an older row."""
        here = {"stage": self.stage_index + 1, "step": self.step, "task": name}
        self._held_out.keep(lambda row: any(row[key] != str(here[key]) for key in here))
        self._held_out.append({**here, **figures, "predictions": round(figures["tokens"])})

    def _row(self, logs, seconds):
        row = super()._row(logs, seconds)
        return {**row, "task": round(log_number(logs["task"])), "steps": 1}

    def _end_row(self):
        tasks, rows, self._pending = {}, self._pending, []
        for row in rows:
            tasks.setdefault(row["task"], []).append(row)
        for own in sorted(tasks.values(), key=lambda own: own[-1]["step"]):
            self.record({**merge_rows(own), "steps": len(own)})


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


def merge_rows(rows):
    """Merges the rows of consecutive steps into one.

    It has the sums of `tokens`, `predictions` and `seconds`, and the means of `loss` and `accuracy`
    (weighted by predictions, without the steps whose loss is not finite), `padding` (weighted by
    positions) and `input_wait`, the share of the time spent waiting for input, over the steps that
    measure it, or `None`. All else is that of the last step.
    """
    if len(rows) == 1:
        return rows[0]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    tokens, seconds = columns["tokens"].astype("float64"), columns["seconds"]
    positions = tokens / np.maximum(1 - columns["padding"], 1e-9)
    learned = columns["predictions"] * np.isfinite(columns["loss"])

    def mean(name, weights):
        values = np.where(weights > 0, columns[name], 0.0)
        return float((values * weights).sum() / weights.sum()) if weights.sum() else math.nan

    columns["input_wait"] = columns["input_wait"].astype("float64")  # NaN for None
    measured = seconds * np.isfinite(columns["input_wait"])
    return {
        **rows[-1],
        "tokens": int(tokens.sum()),
        "predictions": float(columns["predictions"].sum()),
        "loss": mean("loss", learned),
        "accuracy": mean("accuracy", learned),
        "padding": mean("padding", positions),
        "seconds": float(seconds.sum()),
        "tokens_per_second": float(tokens.sum() / max(seconds.sum(), 1e-9)),
        "input_wait": mean("input_wait", measured) if measured.any() else None,
    }


def log_number(value):
    """Converts a value of the logs to a float; with several workers it has shape (1,)."""
    return float(np.asarray(value).reshape(-1)[0])
