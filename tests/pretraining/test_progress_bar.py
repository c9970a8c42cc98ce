"""What a user sees during a run, on a terminal and in a file."""

import io
import math

import pytest
import rich.console
import tensorflow as tf

from roformer_tf.pretraining import Stage, callbacks
from roformer_tf.pretraining.progress_bar import ProgressBar
from tests.pretraining.test_run_log import Steps

STAGES = [Stage(512, 256, 200, 1e-5), Stage(1536, 256, 100, 1e-5), Stage(512, 64, 100, 1e-5)]
LOGS = {"loss": 2.5, "accuracy": 0.5, "learning_rate": 1e-5, "padding": 0.031, "skipped": 0}
LOGS |= {"predictions": 9}
LOGS["tokens"] = 300_000


class Clock:
    """Stands in for the module `time`; it advances when a test says so."""

    now = 0.0

    def perf_counter(self):
        return self.now

    time = perf_counter


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(callbacks, "time", clock)
    return clock


@pytest.fixture
def run_steps(clock):
    def run(bar, count, seconds=2.0, **changes):
        for batch in range(count):
            bar.on_train_batch_begin(batch)
            clock.now += seconds
            bar.on_train_batch_end(batch, {**LOGS, **changes})

    return run


def make_console(terminal, width=100):
    return rich.console.Console(
        file=io.StringIO(), force_terminal=terminal, width=width, color_system=None
    )


def begin(bar, stage_index, stage_step=0):
    bar.begin_stage(stage_index, stage_step)
    bar.on_train_begin()
    bar.on_epoch_begin(0)


def picture(bar, width=100):
    shown = make_console(False, width)
    shown.print(bar._display.get_renderable())
    return shown.file.getvalue()


def test_terminal_shows_everything(run_steps):
    bar = ProgressBar(STAGES, make_console(True))
    begin(bar, 1, 47)
    assert "first step" in picture(bar) and "– left" in picture(bar)
    run_steps(bar, 3)
    shown = picture(bar)
    done = (512 * 256 * 200 + 1536 * 256 * 50) / (
        512 * 256 * 200 + 1536 * 256 * 100 + 512 * 64 * 100
    )
    # 50 steps of 2 s, then 100 of 512 × 64 positions, a twelfth of these
    for words in (
        *(
            "stage 2/3 (1536 × 256)",
            "50/100",
            "0:01:40 left",
            "0:01:57 left",
            f"{100 * done:.1f} %",
        ),
        *("loss 2.500", "accuracy 50.0 %", "learning rate 1.00e-05"),
        *("150,000 tokens/s", "padding 3.1 %"),
    ):
        assert words in shown, words
    assert "skipped" not in shown and "waiting" not in shown
    run_steps(bar, 1, skipped=3)
    assert "skipped 3" in picture(bar)
    assert max(map(len, picture(bar, width=60).splitlines())) <= 60
    bar.close()


def test_one_line_replaces_the_bar(run_steps):
    shown = make_console(True)
    bar = ProgressBar(STAGES, shown)
    begin(bar, 0, 198)
    run_steps(bar, 2)
    bar.on_train_end()
    text = shown.file.getvalue()
    assert "\x1b[?25l" in text and "\x1b[?25h" in text, "the cursor is hidden and comes back"
    end = text[text.rindex("\x1b") :]
    assert end.count("\n") == 1 and "stage 1/3 (512 × 256)  step 200/200  loss 2.500" in end
    bar.close()  # done already
    assert shown.file.getvalue() == text


def test_time_left(run_steps):
    bar = ProgressBar(STAGES, make_console(False))
    begin(bar, 0)
    assert math.isnan(bar.seconds_left()[0])
    run_steps(bar, 1, seconds=60)  # the graph is built
    run_steps(bar, 99, seconds=1)
    # positions of the later stages: 1536 × 256 × 100 and 512 × 64 × 100, at a second for 512 × 256
    assert bar.seconds_left() == pytest.approx((100, 100 + 300 + 25), rel=1e-6)
    run_steps(bar, 100, seconds=1)
    begin(bar, 1)
    run_steps(bar, 50, seconds=6)  # a position costs twice as much
    # the last stage costs what the first did
    assert bar.seconds_left() == pytest.approx((300, 300 + 25), rel=1e-6)


def test_plain_lines_without_a_terminal(run_steps):
    shown = make_console(False)
    bar = ProgressBar(STAGES, shown, every_seconds=3600)
    begin(bar, 1, 90)
    run_steps(bar, 10, skipped=1)
    bar.on_train_end()
    bar.log_held_out(loss=2.25, accuracy=0.625)
    bar.close()
    lines = shown.file.getvalue().splitlines()
    assert len(lines) == 3, "the first step, the last one, held out"
    assert lines[0].startswith("stage 2/3 (1536 × 256)  step 91/100  loss 2.500")
    assert "step 100/100" in lines[1] and "skipped 1" in lines[1]
    assert "left 0:00:00 (run 0:00:17)" in lines[1]
    assert lines[2] == "stage 2/3 (1536 × 256)  held out: loss 2.250  accuracy 62.5 %"
    assert "\x1b" not in shown.file.getvalue()
    always = ProgressBar(STAGES, shown, every_seconds=0)
    begin(always, 0)
    run_steps(always, 5)
    assert len(shown.file.getvalue().splitlines()) == 8


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_skipped_step(run_steps, loss):
    bar = ProgressBar(STAGES, make_console(True))
    begin(bar, 0)
    run_steps(bar, 1, loss=loss, skipped=1)
    assert f"loss {loss}" in picture(bar)
    run_steps(bar, 1, loss=1.5, skipped=1)
    run_steps(bar, 1, loss=loss, skipped=2)
    run_steps(bar, 1, loss=2.5, skipped=2)
    assert "loss 2.000" in picture(bar) and "skipped 2" in picture(bar)
    bar.close()


def test_in_fit():
    model = Steps()
    model.compile()
    data = tf.data.Dataset.range(1, 100).batch(1)
    shown = make_console(True)
    bar = ProgressBar([Stage(16, 4, 4, 1e-3), Stage(32, 2, 3, 1e-3)], shown)
    for index, steps in enumerate([4, 3]):
        bar.begin_stage(index)
        model.fit(data, steps_per_epoch=steps, callbacks=[bar], verbose=0)
    text = shown.file.getvalue()
    assert "step 4/4" in text and "step 3/3" in text
    with pytest.raises(RuntimeError, match="call begin_stage"):
        model.fit(data, steps_per_epoch=1, callbacks=[ProgressBar(STAGES, shown)], verbose=0)
