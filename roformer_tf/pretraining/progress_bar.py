import atexit
import collections
import math
import time

import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text

from roformer_tf.pretraining.step_callback import StepCallback, merge_rows

RECENT_STEPS = 50


class ProgressBar(StepCallback):
    """Shows on the terminal where a pretraining run is and how it goes.

    Stage, step, loss, accuracy of the predicted tokens, learning rate, tokens per second, share of padding, the time
    left for the stage and for the run, and skipped steps when there are any. The figures are means over the last 50
    steps. The time left assumes that a place costs as much in a stage to come as in the last one of its length, or
    else in this one.

    A finished stage leaves one line. Where the output is no terminal, a plain line is written from time to time. Call
    `fit` with `verbose=0`, or Keras writes a bar of its own.

    Args:
        stages: list of `Stage`, the whole run.
        console: `rich.console.Console`; standard output by default.
        every_seconds: float, at least so long between two lines where the output is no terminal.

    Example:

    >>> import rich.console
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.progress_bar import ProgressBar
    >>> stages = [Stage(128, 8, steps=1, learning_rate=1e-4), Stage(512, 2, steps=10, learning_rate=1e-4)]
    >>> bar = ProgressBar(stages, rich.console.Console(width=120))
    >>> bar.begin_stage(0)  # then: pretrainer.fit(..., callbacks=[bar], verbose=0), which does what follows
    >>> bar.on_train_begin()
    >>> bar.on_epoch_begin(0)
    >>> bar.on_train_batch_begin(0)
    >>> bar.on_train_batch_end(0, {"loss": 9.2, "accuracy": 0.01, "learning_rate": 1e-5,
    ...                            "tokens": 1000, "padding": 0.02, "skipped": 0})
    stage 1/2 (128 × 8)  step 1/1  loss 9.200  accuracy 1.0 %  learning rate 1.00e-05  ... tokens/s  padding 2.0 %
    left ...
    >>> bar.close()
    """

    def __init__(self, stages, console=None, every_seconds=30.0):
        super().__init__(stages)
        self.console = console or rich.console.Console()
        self.every_seconds = every_seconds
        self._live = None
        self._printed = -math.inf
        self._recent = collections.deque(maxlen=RECENT_STEPS)
        self._steps_of_fit = 0
        self._now = None  # mean of the recent rows
        self._seconds_per_place = {}  # by length

    def begin_stage(self, stage_index, stage_step=0):
        if stage_index != self.stage_index:
            self._recent.clear()
            self._now = None
        super().begin_stage(stage_index, stage_step)

    def on_train_begin(self, logs=None):
        self._steps_of_fit = 0
        if self.stage_index is None or self._live is not None or not self._is_live_terminal():
            return
        self._live = rich.live.Live(
            get_renderable=self._picture,
            console=self.console,
            refresh_per_second=4,
            transient=True,
        )
        self._live.start()
        atexit.register(
            self.close
        )  # an error in `fit` calls no callback, and would leave the cursor hidden

    def on_train_end(self, logs=None):
        self.close()

    def close(self):
        """Puts one line in the place of the bar; `fit` does it at its end, but not after an error."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)
            self._print_line()

    def record(self, row):
        self._steps_of_fit += 1
        if self._steps_of_fit == 2 and self._recent:
            self._recent.pop()  # the first step of a `fit` is slow, since the graph is made
        self._recent.append(row)
        self._now = merge_rows(list(self._recent))
        places = self.stage.max_length * self.stage.global_batch_size * len(self._recent)
        self._seconds_per_place[self.stage.max_length] = self._now["seconds"] / places
        now = time.monotonic()
        last = self.stage_step == self.stage.steps
        if not self._is_live_terminal() and (last or now - self._printed >= self.every_seconds):
            self._print_line()
            self._printed = now

    def log_held_out(self, loss, accuracy):
        """Prints loss and accuracy on held-out text, two floats."""
        self._print(
            f"{self._stage_name()}  held out: loss {loss:.3f}  accuracy {_percent(accuracy)}"
        )

    def seconds_left(self):
        """How long the stage and the whole run still take, as they went lately.

        Returns:
            Two floats, in seconds; NaN before the first step.
        """
        here = self._seconds_per_place.get(self.stage.max_length, math.nan)
        left = (self.stage.steps - self.stage_step) * _places(self.stage)
        in_stage = left * here
        later = sum(
            stage.steps * _places(stage) * self._seconds_per_place.get(stage.max_length, here)
            for stage in self.stages[self.stage_index + 1 :]
        )
        return in_stage, in_stage + later

    def _is_live_terminal(self):
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def _stage_name(self):
        stage = self.stage
        return (
            f"stage {self.stage_index + 1}/{len(self.stages)} "
            f"({stage.max_length} × {stage.global_batch_size})"
        )

    def _figures(self):
        """The figures as (words, whether they are a warning)."""
        row = self._now
        if row is None:
            return [("first step", False)]
        figures = [
            f"loss {row['loss']:.3f}",
            f"accuracy {_percent(row['accuracy'])}",
            f"learning rate {row['learning_rate']:.2e}",
            f"{row['tokens_per_second']:,.0f} tokens/s",
            f"padding {_percent(row['padding'])}",
        ]
        if row["input_wait"] is not None and row["input_wait"] >= 0.05:
            figures.append(f"waiting for input {_percent(row['input_wait'])}")
        figures = [(words, False) for words in figures]
        if row["skipped"]:
            figures.append((f"skipped {row['skipped']:,}", True))
        return figures

    def _print(self, words):
        self.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _print_line(self):
        in_stage, in_run = self.seconds_left()
        parts = [self._stage_name(), f"step {self.stage_step:,}/{self.stage.steps:,}"]
        parts += [words for words, _ in self._figures()]
        parts.append(f"left {_duration(in_stage)} (run {_duration(in_run)})")
        self._print("  ".join(parts))

    def _picture(self):
        """What the terminal shows: a bar for the stage, one for the run, and the figures."""
        in_stage, in_run = self.seconds_left()
        stage = self.stage
        total = sum(stage.steps * _places(stage) for stage in self.stages)
        done = sum(other.steps * _places(other) for other in self.stages[: self.stage_index])
        done += self.stage_step * _places(stage)
        bars = rich.table.Table.grid(padding=(0, 1), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        for _ in range(2):
            bars.add_column(justify="right", no_wrap=True)
        bars.add_row(
            self._stage_name(),
            rich.progress_bar.ProgressBar(stage.steps, self.stage_step),
            f"{self.stage_step:,}/{stage.steps:,}",
            f"{_duration(in_stage)} left",
        )
        bars.add_row(
            "run",
            rich.progress_bar.ProgressBar(total, done),
            _percent(done / total),
            f"{_duration(in_run)} left",
        )
        figures = rich.text.Text("  ").join(
            rich.text.Text(words, style="bold red" if warns else "")
            for words, warns in self._figures()
        )
        return rich.console.Group(bars, figures)


def _places(stage):
    return stage.max_length * stage.global_batch_size


def _percent(share):
    return f"{100 * share:.1f} %"


def _duration(seconds):
    """`0:42`, `1:02:11` or `2 d 03:10`."""
    if not math.isfinite(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
