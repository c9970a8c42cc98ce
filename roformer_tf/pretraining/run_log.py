import time
from pathlib import Path

from roformer_tf.pretraining.csv_log import CsvLog
from roformer_tf.pretraining.step_callback import StepCallback

LOG_COLUMNS = (
    "step",
    "stage",
    "stage_step",
    "max_length",
    "tokens",
    "loss",
    "accuracy",
    "learning_rate",
    "padding",
    "skipped",
    "tokens_per_second",
    "seconds",
    "input_wait",
)
HELD_OUT_COLUMNS = ("stage", "step", "tokens", "loss", "accuracy")


class RunLog(StepCallback):
    """Writes what the steps report to `log.csv`, and results on held-out text to `held_out.csv`.

    Columns of `log.csv`: `step` (of the run, from 1), `stage` (from 1), `stage_step`, `max_length`, `tokens` (trained
    on since the run began, padding not counted), `loss`, `accuracy`, `learning_rate`, `padding` (share of places with
    no token), `skipped` (steps skipped so far), `tokens_per_second`, `seconds` (since the run began, without what was
    lost in a crash), and `input_wait`, the share of the time spent waiting for input, empty where `train_step` does
    not return `input_ready`. Columns of `held_out.csv`: `stage`, `step`, `tokens`, `loss`, `accuracy`.

    A run that goes on at step k drops the rows of later steps, so that but for the times the files are those of a run
    that was never stopped. For this the callback must come before the one that writes checkpoints, which calls
    `flush`. Where `every` is above 1, a run that was stopped between two rows has one row more. With several workers
    the chief alone logs.

    Args:
        stages: list of `Stage`, the whole run.
        folder: str or path of the run's folder; it is made.
        every: positive integer, steps per row. Loss and accuracy of a row are means over its steps, each weighted by
            its tokens; see `StepCallback.record`.

    Raises:
        ValueError: from `begin_stage`, if the folder holds a `log.csv` with other columns.
        OSError: if a row cannot be written.

    Example:

    >>> import tempfile, pathlib
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.run_log import RunLog
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> log = RunLog([Stage(128, 8, steps=10, learning_rate=1e-4)], folder)
    >>> log.begin_stage(0)  # then: pretrainer.fit(..., callbacks=[log], verbose=0), which does what follows
    >>> log.on_epoch_begin(0)
    >>> log.on_train_batch_begin(0)
    >>> log.on_train_batch_end(0, {"loss": 9.2, "accuracy": 0.01, "learning_rate": 1e-5,
    ...                            "tokens": 1000, "padding": 0.02, "skipped": 0})
    >>> (folder / "log.csv").read_text().splitlines()[1].startswith("1,1,1,128,1000,9.2,0.01,1e-05,0.02,0,")
    True
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
        if self._written is None or self._written > self.step:
            self._go_on()

    def _go_on(self):
        """Drops the rows of steps that will run again, and takes up the counts where the last row left them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = self._log.keep(
            lambda row: (
                int(row["step"]) <= self.step
                and int(row["tokens"]) >= 0
                and float(row["seconds"]) >= 0
            )
        )
        self._held_out.keep(lambda row: int(row["step"]) <= self.step)
        last = rows[-1] if rows else {"step": 0, "tokens": 0, "seconds": 0}
        self._written = int(last["step"])
        self._tokens = int(last["tokens"])
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
        """Adds a row to `held_out.csv` for the current stage and step; it replaces one that is there already.

        Args:
            loss: float, mean over the predicted tokens.
            accuracy: float, share of them predicted right.
        """
        place = {"stage": self.stage_index + 1, "step": self.step}
        self._held_out.keep(lambda row: any(int(row[name]) != place[name] for name in place))
        self._held_out.append(
            {**place, "tokens": self._tokens, "loss": float(loss), "accuracy": float(accuracy)}
        )
