"""What the callbacks write: CSV files, also after a kill at any byte, and TensorBoard's events."""

import math
import os
import signal
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.pretraining import Stage
from roformer_tf.pretraining.callbacks import (
    LOG_COLUMNS,
    CsvLog,
    RunLog,
    StepCallback,
    TaskLog,
    TensorBoardLog,
)
from tests.pretraining.builders import TIMES, as_dataset, make_batches, make_pretrainer, rows

STAGES = [Stage(16, 4, 5, 1e-3), Stage(64, 2, 6, 1e-3), Stage(32, 4, 3, 1e-3)]


def logs_of(step):
    """What `train_step` reports for a step, a function of the step."""
    return {
        "loss": 10 / (1 + step / 3),
        "accuracy": step / 100,
        "predictions": 10 + step,
        "learning_rate": 1e-3 * step,
        "tokens": 100 + 7 * step,
        "padding": (step % 4) / 10,
        "skipped": step // 6,
    }


def run_steps(callbacks, start=0, stop=14, checkpoints=(), held_out=True):
    """Calls the callbacks as the run loop and `fit` do for steps start + 1 … stop."""
    first = 0
    for index, stage in enumerate(STAGES):
        begin, end = max(start, first), min(stop, first + stage.steps)
        if begin < end:
            for callback in callbacks:
                callback.begin_stage(index, begin - first)
                callback.on_train_begin()
                callback.on_epoch_begin(0)
            for batch, step in enumerate(range(begin + 1, end + 1)):
                for callback in callbacks:
                    callback.on_train_batch_begin(batch)
                for callback in callbacks:
                    callback.on_train_batch_end(batch, logs_of(step))
                    if step in checkpoints:
                        callback.flush()
            if end == first + stage.steps or stop == 14:  # else the process was killed
                for callback in callbacks:
                    callback.on_epoch_end(0)
                    callback.on_train_end()
                    if held_out:
                        callback.log_held_out(loss=2.0 + index, accuracy=0.5)
        first += stage.steps


def read(folder, without=TIMES):
    rows = CsvLog(folder / "log.csv", LOG_COLUMNS).rows()
    return [{k: v for k, v in row.items() if k not in without} for row in rows]


class Steps(keras.Model):
    """A model that logs what a pretrainer does; its batch is the number of the step."""

    def build(self, shape):
        self.weight = self.add_weight(shape=())

    def train_step(self, step):
        with tf.control_dependencies([step]):
            ready = tf.timestamp()
        step = tf.cast(step[0], tf.float32)
        return {
            "loss": 10 / step,
            "accuracy": step / 100,
            "predictions": step,
            "learning_rate": tf.constant(1e-3),
            "tokens": tf.cast(100 * step, tf.int64),
            "padding": tf.constant(0.25),
            "skipped": tf.constant(0, tf.int64),
            "input_ready": ready,
        }


def test_fit_writes_a_row_for_every_step(tmp_path):
    def slow(step):
        time.sleep(0.05)
        return step

    model = Steps()
    model.compile()
    log, board = RunLog(STAGES, tmp_path), TensorBoardLog(STAGES, tmp_path / "tensorboard")
    steps = tf.data.Dataset.range(1, 100).batch(1)
    waits = steps.map(lambda x: tf.ensure_shape(tf.numpy_function(slow, [x], tf.int64), [1]))
    for index, data in enumerate([waits.take(5), steps.skip(5).take(6)]):
        for callback in (log, board):
            callback.begin_stage(index)
        model.fit(data, callbacks=[log, board], verbose=0)
    rows = CsvLog(tmp_path / "log.csv", LOG_COLUMNS).rows()
    columns = {name: [float(row[name]) for row in rows] for name in LOG_COLUMNS}
    step = np.arange(1, 12)
    for name, expected in {
        "step": step,
        "stage": [1] * 5 + [2] * 6,
        "stage_step": [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6],
        "max_length": [16] * 5 + [64] * 6,
        "loss": 10 / step,
        "accuracy": step / 100,
        "tokens": 100 * np.cumsum(step),
        "padding": np.full(11, 0.25),
    }.items():
        # seven digits are written
        np.testing.assert_allclose(columns[name], expected, rtol=1e-6)
    assert columns["seconds"] == sorted(columns["seconds"]) and columns["seconds"][0] > 0
    assert all(0 <= wait <= 1 for wait in columns["input_wait"])
    # some 95 % while the input is slow; on a busy machine less
    assert all(wait > 0.3 for wait in columns["input_wait"][1:5])
    assert len(scalars(tmp_path)["train/loss"]) == 11


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("checkpoint", [0, 2, 5, 7, 8, 13])
def test_resumed_log_is_that_of_an_uninterrupted_run(tmp_path, every, checkpoint):
    checkpoints = (2, 5, 7, 8, 13)
    run_steps([RunLog(STAGES, tmp_path / "whole", every)], checkpoints=checkpoints)
    broken = tmp_path / "broken"
    run_steps(
        [RunLog(STAGES, broken, every)], stop=min(checkpoint + 4, 14), checkpoints=checkpoints
    )
    run_steps([RunLog(STAGES, broken, every)], start=checkpoint, checkpoints=checkpoints)
    assert read(broken) == read(tmp_path / "whole")
    held_out = [(folder / "held_out.csv").read_text() for folder in (broken, tmp_path / "whole")]
    assert held_out[0] == held_out[1] and held_out[0].count("\n") == 4
    total = sum(logs_of(step)["tokens"] for step in range(1, 15))
    assert read(broken)[-1]["tokens"] == str(total)
    assert sorted(file.name for file in broken.iterdir()) == ["held_out.csv", "log.csv"]


def test_seconds_continue_after_a_resume(tmp_path):
    run_steps([RunLog(STAGES, tmp_path)], stop=7)
    text = (tmp_path / "log.csv").read_text().splitlines()
    fields = text[6].split(",")  # step 6
    fields[LOG_COLUMNS.index("seconds")] = "5000"
    (tmp_path / "log.csv").write_text("\n".join([*text[:6], ",".join(fields), text[7], ""]))
    run_steps([RunLog(STAGES, tmp_path)], start=6)
    seconds = [float(row["seconds"]) for row in read(tmp_path, without=())]
    assert 5000 <= seconds[6] < 5060 and seconds[6:] == sorted(seconds[6:])


def run_one(log, logs):
    log.on_train_batch_begin(0)
    log.on_train_batch_end(0, logs)


def test_log_cut_off_at_any_byte(tmp_path):
    """A process killed while it writes leaves a part of the last row, or of the header."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    broken.mkdir()
    run_steps([RunLog(STAGES, whole)], stop=7)
    data = (whole / "log.csv").read_bytes()
    last, header = data[:-1].rindex(b"\n") + 1, data.index(b"\n") + 1
    for size in [*range(header + 1), *range(last, len(data) + 1)]:
        (broken / "log.csv").write_bytes(data[:size])
        done = 0 if size <= header else 6  # steps of the checkpoint
        assert len(read(broken)) == (7 if size == len(data) else done)
        log = RunLog(STAGES, broken)
        log.begin_stage(*((1, 1) if done else (0, 0)))
        if done:
            assert (broken / "log.csv").read_bytes() == data[:last]
        log.on_epoch_begin(0)
        run_one(log, logs_of(done + 1))
        assert read(broken) == read(whole)[: done + 1]


def test_garbage_after_a_power_failure_is_dropped(tmp_path):
    run_steps([RunLog(STAGES, tmp_path)], stop=7)
    good = read(tmp_path)
    zeros = b"\0" * 50
    for garbage in (zeros, zeros + b"\n", b"\xff\xfe,1\n8,2\n", b"8," + b"x," * 11 + b"\n"):
        with open(tmp_path / "log.csv", "ab") as file:
            file.write(garbage)
        RunLog(STAGES, tmp_path).begin_stage(1, 2)
        assert read(tmp_path) == good


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_process_leaves_whole_rows(tmp_path):
    log = CsvLog(tmp_path / "log.csv", ["step", "loss"])
    child = os.fork()
    if not child:
        for step in range(42):
            log.append({"step": step, "loss": step / 7})
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert [int(row["step"]) for row in log.rows()] == list(range(42))


def test_full_disk_loses_nothing_and_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    run_steps([RunLog(STAGES, tmp_path)], stop=7)
    data = (tmp_path / "log.csv").read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"The disk is full.*log\.csv"):
        RunLog(STAGES, tmp_path).begin_stage(0, 3)
    assert (tmp_path / "log.csv").read_bytes() == data
    assert sorted(file.name for file in tmp_path.iterdir()) == ["held_out.csv", "log.csv"]

    if sys.platform.startswith("linux"):
        (tmp_path / "full.csv").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"Cannot write the log .*full\.csv: .*No space left"):
            CsvLog(tmp_path / "full.csv", ["a"]).append({"a": 1})


def test_going_back_in_the_same_process(tmp_path):
    """A run that returns to its last good checkpoint, as after too many skipped steps."""
    back = tmp_path / "back"
    log, board = RunLog(STAGES, back), TensorBoardLog(STAGES, back / "tensorboard")
    run_steps([log, board], stop=9)
    run_steps([log, board], start=6)
    run_steps([RunLog(STAGES, tmp_path / "whole")])
    assert read(back) == read(tmp_path / "whole")
    assert restarts(back) == [[1, 7]]


def test_rows_of_several_steps_are_weighted_means(tmp_path, rng):
    log = RunLog(STAGES, tmp_path, every=5)
    log.begin_stage(0)
    tokens, padding = rng.integers(10, 1000, 5), rng.uniform(0, 0.9, 5)
    loss, accuracy = rng.uniform(1, 9, 5), rng.uniform(0, 1, 5)
    predictions = rng.integers(1, 100, 5)
    loss[2] = math.nan  # a skipped step: seen, not learned from
    loss[3] = accuracy[3] = predictions[3] = 0  # such as of texts that are [UNK] alone
    log.on_epoch_begin(0)
    for step in range(5):
        values = {"loss": loss[step], "accuracy": accuracy[step], "padding": padding[step]}
        values |= {"tokens": np.array([tokens[step]]), "learning_rate": step, "skipped": step // 2}
        values["predictions"] = predictions[step]
        run_one(log, values)
    (row,) = read(tmp_path)
    good = np.isfinite(loss)
    expected = {
        "loss": np.average(loss[good], weights=predictions[good]),
        "accuracy": np.average(accuracy[good], weights=predictions[good]),
        "padding": 1 - tokens.sum() / (tokens / (1 - padding)).sum(),
        "tokens": tokens.sum(),
        "learning_rate": 4,
        "skipped": 2,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(float(row[name]), value, rtol=1e-6)

    log = RunLog(STAGES, tmp_path / "nothing_finite", every=2)
    log.begin_stage(0)
    log.on_epoch_begin(0)
    for _ in range(2):
        run_one(log, {**logs_of(1), "loss": math.inf})
    (row,) = read(tmp_path / "nothing_finite")
    assert row["loss"] == "nan" and row["tokens"] == "214"


@pytest.mark.parametrize("every", [1, 2])
def test_a_mean_of_no_predictions_is_no_number(tmp_path, every):
    """0 would look like a perfect loss, or the worst accuracy."""
    log = RunLog(STAGES, tmp_path, every)
    log.begin_stage(0)
    log.on_epoch_begin(0)
    for _ in range(2):
        run_one(log, {**logs_of(1), "loss": 0.0, "accuracy": 0.0, "predictions": 0.0})
    for row in read(tmp_path):
        assert row["loss"] == row["accuracy"] == "nan"


def test_a_row_ends_at_every_second_step_of_the_run_and_with_fit():
    class Rows(StepCallback):
        def record(self, row):
            rows.append([row[name] for name in ("step", "stage", "stage_step", "loss", "tokens")])

    rows, callback = [], Rows([Stage(128, 8, 10, 1e-4), Stage(512, 2, 10, 1e-4)], every=2)
    callback.begin_stage(1, stage_step=2)
    callback.on_epoch_begin(0)
    for loss, tokens in ((4.0, 1000), (2.0, 3000), (8.0, 1000)):
        logs = {"loss": loss, "tokens": tokens, "predictions": tokens // 10}
        run_one(callback, {**logs_of(1), **logs})
    assert rows == [[14, 2, 4, 2.5, 4000]]
    callback.on_epoch_end(0)
    assert rows[1:] == [[15, 2, 5, 8.0, 1000]]


def test_tracing_is_no_waiting_for_input(tmp_path):
    """The first step builds the graph for seconds before it takes a batch."""
    model = make_pretrainer(keras.optimizers.AdamW(1e-3, global_clipnorm=1.0))
    batches = as_dataset(make_batches(np.random.default_rng(0), 1))
    logs = [RunLog(STAGES, tmp_path / str(every), every) for every in (1, 5)]
    for log in logs:
        log.begin_stage(0)
    model.fit(batches, steps_per_epoch=5, verbose=0, callbacks=logs)
    each, merged = (read(tmp_path / every, without=()) for every in ("1", "5"))
    assert [row["input_wait"] != "" for row in each] == [False, True, True, True, True]
    assert [row["input_wait"] != "" for row in merged] == [True]
    assert model.traces == 1


def test_task_log_has_a_row_for_each_task(tmp_path):
    log = TaskLog([Stage(128, 8, 10, 1e-4)], ["masked_lm", "tnews"], tmp_path, every=3)
    log.begin_stage(0)
    log.on_epoch_begin(0)
    for task, loss in ((0, 9.0), (1, 2.0), (1, 1.0)):
        logs = {"loss": loss, "accuracy": 0.5, "tokens": 9, "task": task}
        run_one(log, {**logs_of(1), **logs})
    text = (tmp_path / "tasks.csv").read_text()
    assert text == (
        "step,stage,task,steps,loss,accuracy\n1,1,masked_lm,1,9,0.5\n3,1,tnews,2,1.5,0.5\n"
    )
    for task in (1, 1, 0):
        run_one(log, {**logs_of(1), "task": task})
    steps = [row["step"] for row in rows(tmp_path / "tasks.csv")]
    assert steps == ["1", "3", "5", "6"]  # in their order, not in that of the tasks


def test_rows_that_are_not_wanted_are_removed(tmp_path):
    log = CsvLog(tmp_path / "log.csv", ["step", "loss"])
    log.append({"step": 1, "loss": 2.5})
    log.append({"step": 2, "loss": 1.75})
    assert log.keep(lambda row: int(row["step"]) <= 1) == [{"step": "1", "loss": "2.5"}]
    assert log.rows() == [{"step": "1", "loss": "2.5"}]


def test_held_out_row_is_replaced(tmp_path):
    log = RunLog(STAGES, tmp_path)
    run_steps([log], stop=5)
    log.log_held_out(loss=1.25, accuracy=0.75)  # evaluated again after a crash
    text = (tmp_path / "held_out.csv").read_text()
    assert text == "stage,step,tokens,loss,accuracy\n1,5,605,1.25,0.75\n"


def test_errors(tmp_path):
    run_steps([StepCallback(STAGES)])  # no method must be overridden
    with pytest.raises(ValueError, match="at least one Stage"):
        RunLog([], tmp_path)
    with pytest.raises(ValueError, match="`every` must be a positive integer"):
        RunLog(STAGES, tmp_path, every=0)
    log = RunLog(STAGES, tmp_path)
    with pytest.raises(RuntimeError, match="call begin_stage"):
        log.on_epoch_begin(0)
    with pytest.raises(ValueError, match="from 0 to 2. Received: stage_index=3"):
        log.begin_stage(3)
    with pytest.raises(ValueError, match="from 0 to 5, the steps of the stage. .*=6"):
        log.begin_stage(0, 6)
    log.begin_stage(0)
    log.on_epoch_begin(0)
    with pytest.raises(ValueError, match="Received: loss; return accuracy, .* from `train_step`"):
        run_one(log, {"loss": 1.0})
    (tmp_path / "log.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(
        ValueError, match="not the log of a pretraining run.*Received: 'epoch,loss'"
    ):
        RunLog(STAGES, tmp_path).begin_stage(0)
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n1,2\n"
    (tmp_path / "log.csv").write_text(",".join(LOG_COLUMNS) + "\n1,2\n")
    with pytest.raises(ValueError, match="line 2: expected 13 values"):
        CsvLog(tmp_path / "log.csv", LOG_COLUMNS).rows()


def events_of(path):
    records = tf.data.TFRecordDataset(str(path))
    return [tf.compat.v1.Event.FromString(record.numpy()) for record in records]


def event_files(folder):
    return sorted((folder / "tensorboard").iterdir())


def scalars(folder):
    """What TensorBoard shows: by tag {step: value}; a restart takes away later steps."""
    shown = {}
    for path in event_files(folder):
        for event in events_of(path):
            if event.HasField("session_log"):
                for values in shown.values():
                    for step in [step for step in values if step >= event.step]:
                        del values[step]
            for value in event.summary.value:
                assert event.step not in shown.setdefault(value.tag, {}), "a step shown twice"
                shown[value.tag][event.step] = value.simple_value
    return shown


def restarts(folder):
    return [
        [event.step for event in events_of(path) if event.HasField("session_log")]
        for path in event_files(folder)
    ]


def test_tensorboard_events(tmp_path):
    run_steps([TensorBoardLog(STAGES, tmp_path / "tensorboard")], stop=9, held_out=False)
    run_steps([TensorBoardLog(STAGES, tmp_path / "tensorboard")], start=7)
    assert len(event_files(tmp_path)) == 2
    assert all("tfevents" in path.name for path in event_files(tmp_path))
    assert all(events_of(path)[0].file_version == "brain.Event:2" for path in event_files(tmp_path))
    assert restarts(tmp_path) == [[1], [8]]
    shown = scalars(tmp_path)
    for tag, name in {"train/loss": "loss", "train/accuracy": "accuracy"}.items():
        assert list(shown[tag]) == list(range(1, 15))
        expected = [logs_of(step)[name] for step in range(1, 15)]
        np.testing.assert_allclose(list(shown[tag].values()), expected, rtol=1e-7)  # float32
    assert shown["stage/max_length"][5] == 16 and shown["stage/max_length"][6] == 64
    assert shown["held_out/loss"] == {11: 3.0, 14: 4.0}
    assert "input/wait" not in shown
