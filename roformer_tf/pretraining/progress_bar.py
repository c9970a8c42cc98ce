import atexit
import collections
import datetime
import math
import time

import rich.console
import rich.progress
import rich.text

from roformer_tf.pretraining.callbacks import StepCallback, merge_rows

RECENT_STEPS = 50


class ProgressBar(StepCallback):
    """Shows the progress of a pretraining run on the terminal.

    Shows stage, step, loss, accuracy of the predicted tokens, learning rate, tokens per second,
    share of padding, time left for the stage and for the run, and skipped steps if there are any.
    The figures are means over the last 50 steps. The time left assumes that a position costs as
    much as in the last stage of the same length, or else as in this one.

    A finished stage leaves one line. If the output is not a terminal, plain lines are printed from
    time to time. Call `fit` with `verbose=0`; otherwise Keras shows a bar of its own.

    Args:
        stages: list of `Stage`. The whole run.
        console: `rich.console.Console`. Defaults to standard output.
        every_seconds: float. The least time between two lines if the output is not a terminal.

    Example:

    >>> import rich.console
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.progress_bar import ProgressBar
    >>> stages = [Stage(128, 8, 1, learning_rate=1e-4), Stage(512, 2, 10, learning_rate=1e-4)]
    >>> bar = ProgressBar(stages, rich.console.Console(width=120))
    >>> bar.begin_stage(0)  # then pretrainer.fit(..., callbacks=[bar]) does the following
    >>> bar.on_train_begin()
    >>> bar.on_epoch_begin(0)
    >>> bar.on_train_batch_begin(0)
    >>> bar.on_train_batch_end(0, {"loss": 9.2, "accuracy": 0.01, "learning_rate": 1e-5,
    ...                            "tokens": 1000, "predictions": 150, "padding": 0.02,
    ...                            "skipped": 0})
    stage 1/2 (128 × 8)  step 1/1  loss 9.200  accuracy 1.0 %  learning rate 1.00e-05 ...
    >>> bar.close()
    """

    def __init__(self, stages, console=None, every_seconds=30.0):
        super().__init__(stages)
        self.console = console or rich.console.Console()
        self.every_seconds = every_seconds
        self._display = None
        self._printed = -math.inf
        self._recent = collections.deque(maxlen=RECENT_STEPS)
        self._steps_of_fit = 0
        self._mean = None  # of the recent rows
        self._seconds_per_position = {}  # by length

    def begin_stage(self, stage_index, stage_step=0):
        if stage_index != self.stage_index:
            self._recent.clear()
            self._mean = None
        super().begin_stage(stage_index, stage_step)

    def on_train_begin(self, logs=None):
        self._steps_of_fit = 0
        if self.stage_index is not None and self._display is None and self.console.is_interactive:
            self._display = _Display(self)
            self._display.start()
            # an error in `fit` calls no callback, and would leave the cursor hidden
            atexit.register(self.close)

    def on_train_end(self, logs=None):
        self.close()

    def close(self):
        """Replaces the bar with one line. `fit` calls it at its end, but not after an error."""
        if self._display is not None:
            self._display.stop()
            self._display = None
            atexit.unregister(self.close)
            self._print_line()

    def record(self, row):
        self._steps_of_fit += 1
        if self._steps_of_fit == 2 and self._recent:
            self._recent.pop()  # the first step of a `fit` is slow, because it builds the graph
        self._recent.append(row)
        self._mean = merge_rows(list(self._recent))
        positions = self.stage.positions / self.stage.steps * len(self._recent)
        self._seconds_per_position[self.stage.max_length] = self._mean["seconds"] / positions
        now = time.monotonic()
        is_due = self.stage_step == self.stage.steps or now - self._printed >= self.every_seconds
        if self._display is not None:
            self._display.show()
        elif is_due and not self.console.is_interactive:
            self._print_line()
            self._printed = now

    def log_held_out(self, loss, accuracy):
        self._print(
            f"{self.stage_name()}  held out: loss {loss:.3f}  accuracy {_percent(accuracy)}"
        )

    def seconds_left(self):
        """Predicts the seconds that stage and run still take, two floats; NaN before any step."""
        here = self._seconds_per_position.get(self.stage.max_length, math.nan)
        left = 1 - self.stage_step / self.stage.steps
        in_stage = left * self.stage.positions * here
        later = sum(
            stage.positions * self._seconds_per_position.get(stage.max_length, here)
            for stage in self.stages[self.stage_index + 1 :]
        )
        return in_stage, in_stage + later

    def stage_name(self):
        """The current stage, its length and its batch size in words."""
        stage, number = self.stage, self.stage_index + 1
        return f"stage {number}/{len(self.stages)} ({stage.max_length} × {stage.global_batch_size})"

    def figures(self):
        """The means over the recent steps, a list of words."""
        row = self._mean
        if row is None:
            return ["first step"]
        figures = [
            f"loss {row['loss']:.3f}",
            f"accuracy {_percent(row['accuracy'])}",
            f"learning rate {row['learning_rate']:.2e}",
            f"{row['tokens_per_second']:,.0f} tokens/s",
            f"padding {_percent(row['padding'])}",
        ]
        if row["input_wait"] is not None and row["input_wait"] >= 0.05:
            figures.append(f"waiting for input {_percent(row['input_wait'])}")
        return figures + ([f"skipped {row['skipped']:,}"] if row["skipped"] else [])

    def _print(self, words):
        self.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _print_line(self):
        in_stage, in_run = map(_duration, self.seconds_left())
        step = f"step {self.stage_step:,}/{self.stage.steps:,}"
        left = f"left {in_stage} (run {in_run})"
        self._print("  ".join([self.stage_name(), step, *self.figures(), left]))


class _Display(rich.progress.Progress):
    """A bar for the stage, one for the run, and the figures below."""

    def __init__(self, owner):
        self._owner = owner
        super().__init__(
            "{task.description}",
            rich.progress.BarColumn(bar_width=None),
            "{task.fields[done]}",
            "{task.fields[left]} left",
            console=owner.console,
            refresh_per_second=4,
            transient=True,
            expand=True,
        )
        for name in (owner.stage_name(), "run"):
            self.add_task(name, done="", left="")
        self.show()

    def show(self):
        """Shows the current state of the owner."""
        stage, stages, step = self._owner.stage, self._owner.stages, self._owner.stage_step
        in_stage, in_run = map(_duration, self._owner.seconds_left())
        done = f"{step:,}/{stage.steps:,}"
        self.update(0, completed=step, total=stage.steps, done=done, left=in_stage)
        total = sum(each.positions for each in stages)
        done = sum(each.positions for each in stages[: self._owner.stage_index])
        done += stage.positions * step / stage.steps
        self.update(1, completed=done, total=total, done=_percent(done / total), left=in_run)

    def get_renderables(self):
        yield self.make_tasks_table(self.tasks)
        text = rich.text.Text("  ".join(self._owner.figures()))
        text.highlight_regex(r"skipped .*", "bold red")
        yield text


def _percent(share):
    return f"{100 * share:.1f} %"


def _duration(seconds):
    """Such as `0:00:42` or `2 days, 3:10:00`."""
    return str(datetime.timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "–"
