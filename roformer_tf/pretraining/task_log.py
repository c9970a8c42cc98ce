from pathlib import Path

from roformer_tf.pretraining.callbacks import StepCallback, log_number, merge_rows
from roformer_tf.pretraining.csv_log import CsvLog

COLUMNS = ("step", "stage", "task", "steps", "loss", "accuracy")
HELD_OUT_COLUMNS = ("stage", "step", "task", "loss", "accuracy", "predictions")


class TaskLog(StepCallback):
    """Writes loss and accuracy of each task of a multi-task run to `tasks.csv`.

    Columns of `tasks.csv`: `step` (of the run, from 1), `stage` (from 1), `task` (its name),
    `steps` (of this task since the last row), and the means of `loss` and `accuracy` over them.
    Columns of `held_out_tasks.csv`: `stage`, `step`, `task`, `loss`, `accuracy` and the number of
    `predictions` that they are means of.

    Like `RunLog`, it continues exactly after a kill.

    Args:
        stages: list of `Stage`. The whole run.
        names: list of str. Name of each task by its number, which `train_step` returns as `task`.
        folder: str or path. The run's folder.
        every: int. Steps of the run per row of a task.

    Example:

    >>> import tempfile, pathlib
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.task_log import TaskLog
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> log = TaskLog([Stage(128, 8, 10, 1e-4)], ["masked_lm", "tnews"], folder, every=3)
    >>> log.begin_stage(0)  # then pretrainer.fit(..., callbacks=[log]) does the following
    >>> log.on_epoch_begin(0)
    >>> logs = {"accuracy": 0.5, "learning_rate": 1e-5, "padding": 0.0, "tokens": 9, "skipped": 0}
    >>> for step, (task, loss) in enumerate([(0, 9.0), (1, 2.0), (1, 1.0)]):
    ...     log.on_train_batch_begin(step)
    ...     log.on_train_batch_end(step, {**logs, "task": task, "loss": loss})
    >>> print((folder / "tasks.csv").read_text().strip())
    step,stage,task,steps,loss,accuracy
    1,1,masked_lm,1,9,0.5
    3,1,tnews,2,1.5,0.5
    """

    def __init__(self, stages, names, folder, every=1):
        super().__init__(stages, every)
        self.names = list(names)
        self._log = CsvLog(Path(folder) / "tasks.csv", COLUMNS)
        self._held_out = CsvLog(Path(folder) / "held_out_tasks.csv", HELD_OUT_COLUMNS)

    def begin_stage(self, stage_index, stage_step=0):
        super().begin_stage(stage_index, stage_step)
        for log in (self._log, self._held_out):
            # also what a kill left of a row
            log.keep(lambda row: int(row["step"]) <= self.step)

    def record(self, row):
        """Writes a row of one task."""
        self._log.append({**row, "task": self.names[row["task"]]})

    def flush(self):
        super().flush()
        self._log.sync()

    def log_held_out_task(self, name, figures):
        """Writes what `evaluate_batches` returned for a task; replaces an older row."""
        here = {"stage": self.stage_index + 1, "step": self.step, "task": name}
        self._held_out.keep(lambda row: any(row[key] != str(here[key]) for key in here))
        values = {"loss": figures["loss"], "accuracy": figures["accuracy"]}
        self._held_out.append({**here, **values, "predictions": round(figures["tokens"])})

    def _row(self, logs, seconds):
        row = super()._row(logs, seconds)
        return {**row, "task": round(log_number(logs["task"])), "steps": 1}

    def _end_row(self):
        rows, self._pending = self._pending, []
        for task in sorted({row["task"] for row in rows}):
            own = [row for row in rows if row["task"] == task]
            self.record({**merge_rows(own), "steps": len(own)})
