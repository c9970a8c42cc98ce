import itertools
import os
import time
from pathlib import Path

import tensorflow as tf

from roformer_tf.pretraining.step_callback import StepCallback

# tag in TensorBoard, which groups by what stands before the slash -> name in the row
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


class TensorBoardLog(StepCallback):
    """Writes what the steps report for TensorBoard.

    It does not need the package `tensorboard`, which Keras' own callback does: an event file is records of a protocol
    buffer that TensorFlow has. The steps are those of the whole run.

    Every start of the run writes a file of its own, whose first event is TensorBoard's mark of a restart: what an
    earlier file holds of later steps is not shown. Events are on disk as soon as they are written. With several workers
    the chief alone logs.

    Args:
        stages: list of `Stage`, the whole run.
        folder: str or path of the folder of the event files, such as `tensorboard` in the run's folder; it is made.
        every: positive integer, steps per event; see `StepCallback.record` for the means.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.tensorboard_log import TensorBoardLog
    >>> folder = tempfile.mkdtemp()
    >>> log = TensorBoardLog([Stage(128, 8, steps=10, learning_rate=1e-4)], folder)
    >>> log.begin_stage(0)  # then: pretrainer.fit(..., callbacks=[log], verbose=0), and at the end of the stage:
    >>> log.log_held_out(loss=2.5, accuracy=0.5)
    >>> records = tf.data.TFRecordDataset(tf.io.gfile.glob(f"{folder}/*"))
    >>> event = [tf.compat.v1.Event.FromString(record.numpy()) for record in records][-1]
    >>> [(value.tag, value.simple_value) for value in event.summary.value]
    [('held_out/loss', 2.5), ('held_out/accuracy', 0.5)]

    Reference: `_CheckForRestartAndMaybePurge` of TensorBoard's `event_accumulator.py`.
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
            # TensorBoard reads the files in the order of their names, which are those of TensorFlow but for the
            # computer's name; fractions of a second keep two starts in a row apart.
            name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}.{next(_file_numbers)}.v2"
            self._writer = tf.io.TFRecordWriter(str(self.folder / name))
            self._write(file_version="brain.Event:2")
        elif self._latest is None or self._latest <= self.step:
            return
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._write(step=self.step + 1, session_log=start)
        self._latest = self.step

    def record(self, row):
        values = {tag: row[name] for tag, name in TAGS.items() if row[name] is not None}
        self._write_scalars(row["step"], values)

    def log_held_out(self, loss, accuracy):
        """Writes loss and accuracy on held-out text for the current step; the arguments are floats."""
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
