"""A run that is killed or stopped ends with the weights of an uninterrupted run.

The long form, with twenty kills in each of two strategies:
`python -m tests.pretraining.kill_runs`.
"""

import signal

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.__main__ import main
from roformer_tf.pretraining.pretrainer import Pretrainer
from roformer_tf.pretraining.run import DelaySignals, SaveCheckpoints
from tests.pretraining import builders
from tests.pretraining import run_processes as runs
from tests.pretraining.kill_runs import compare, kill_once


@builders.determinism_ends()
def train_here(settings, output):
    """Trains to the end in this process."""
    assert main(["pretrain", str(settings), "--output", str(output), "--quiet"]) == 0


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, rng):
    # steps take milliseconds, setting up a stage takes seconds
    settings = runs.write_run(tmp_path / "texts", lengths=(16, 40), steps=20)
    log, output, whole = tmp_path / "messages.log", tmp_path / "run", tmp_path / "whole"
    train_here(settings, whole)
    runs.check_complete(whole, settings)

    lives = [kill_once(settings, output, rng, longest=None, kind="checkpoint", log=log)]
    # stopped by a signal: what is done is saved
    number = int(rng.choice([signal.SIGTERM, signal.SIGINT]))
    process = runs.start(settings, output, log=log)
    assert runs.wait_for(
        lambda: runs.num_logged_steps(output) >= 21, process
    )  # in the second stage
    process.send_signal(number)
    assert runs.finish(process, timeout=60) == 128 + number
    assert runs.newest_step(output) == runs.num_logged_steps(output) >= 21
    train_here(settings, output)

    runs.check_complete(output, settings)
    result = compare(output, whole)
    assert result["variables_not_bit_identical"] == 0, (result, lives)
    assert result["logs_identical"]
    assert "Traceback" not in log.read_text()


class FakePretrainer:
    """What `SaveCheckpoints` needs of the model."""

    def __init__(self):
        self.steps_done, self.stop_training, self.asked = 10, False, False

    def ask_to_stop(self):
        self.asked = True


@pytest.fixture
def guard():
    """Makes the parts of a `fit`: signals, callback, list of the steps saved."""

    def make(together=False, every=4):
        signals, saved = DelaySignals(), []
        callback = SaveCheckpoints(lambda: saved.append(callback._step), every, signals, together)
        callback.set_model(FakePretrainer())
        callback.on_train_begin()
        return signals, callback, saved

    return make


def step(callback, number=0, stop=0.0):
    callback.on_train_batch_begin(number)
    callback.on_train_batch_end(number, {"stop": np.array([stop])})


def test_a_signal_is_obeyed_at_once_where_nothing_is_unsaved(guard):
    with guard()[0] as signals:
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    assert signals.received == signal.SIGTERM
    # after a checkpoint too
    signals, callback, saved = guard(every=1)
    step(callback)
    assert saved == [11] and not signals.defer


def test_a_signal_is_noted_where_a_step_is_unsaved(guard):
    signals, callback, saved = guard()
    with signals:
        step(callback)
        signal.raise_signal(signal.SIGTERM)
        assert not saved and not callback.model.stop_training
        step(callback)
        assert saved == [12] and callback.model.stop_training
        callback.on_train_end()
        assert saved == [12]  # once is enough
        with pytest.raises(SystemExit):  # a second Ctrl-C does not wait
            signal.raise_signal(signal.SIGINT)


def test_workers_stop_after_the_same_step(guard):
    """A worker that receives a signal asks the others; all stop at the same logs."""
    asked, first, saved_first = guard(together=True)
    other, second, saved_second = guard(together=True)
    assert asked.defer
    asked._handle(signal.SIGTERM, None)
    step(first, 0, stop=0.0)
    assert not first.model.stop_training
    step(first, 1, stop=1.0)
    step(second, 0, stop=0.0)
    step(second, 1, stop=1.0)
    assert first.model.asked and not second.model.asked
    assert first.model.stop_training and second.model.stop_training
    assert saved_first == saved_second == [12]
    assert other.received == signal.SIGTERM


@pytest.mark.slow
def test_a_run_that_skips_nearly_all_steps_is_not_completed(tmp_path, capsys):
    """The first step with this weight decay makes the weights infinite."""
    settings = runs.write_run(tmp_path / "texts", lengths=(16,), steps=9, deterministic=False)
    command = ["pretrain", str(settings), "--output", str(tmp_path / "run"), "--quiet"]
    assert main([*command, "--set", "optimizer.weight_decay=1e30"]) == 3
    assert "of 9 steps had NaN or infinite gradients" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("stage-*"))


@pytest.mark.slow
def test_a_run_of_nan_stops_and_resumes_from_its_last_checkpoint(tmp_path, monkeypatch, capsys):
    run = {"max_skipped_in_a_row": 3, "deterministic": False}
    settings = runs.write_run(tmp_path / "texts", lengths=(16,), steps=9, **run)
    command = ["pretrain", str(settings), "--output", str(tmp_path / "run"), "--quiet"]
    loss_sum = Pretrainer.loss_sum

    def nan_from_the_sixth_step(self, batch, training=False):
        loss, correct = loss_sum(self, batch, training)
        return loss * tf.where(tf.convert_to_tensor(self.step) >= 5, np.nan, 1.0), correct

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "loss_sum", nan_from_the_sixth_step)
        assert main(command) == 3
    message = capsys.readouterr().err
    assert "3 steps in a row had NaN or infinite gradients" in message
    assert "Last checkpoint: step 6 in" in message and "learning_rate" in message
    assert runs.newest_step(tmp_path / "run") == 6
    saved = runs.variables(tmp_path / "run")
    assert all(np.isfinite(x).all() for x in saved.values() if x.dtype.kind == "f")
    assert [
        saved[f"optimizer/reduced_gradients/{name}"] for name in ("skipped", "skipped_in_a_row")
    ] == [1, 1]

    # what the message suggests
    text = settings.read_text().replace("learning_rate = 0.01", "learning_rate = 0.001")
    settings.write_text(text)
    assert main(command) == 2
    assert "stages[0].learning_rate was 0.01, is 0.001" in capsys.readouterr().err
    assert main([*command, "--allow-changes"]) == 0
    runs.check_complete(tmp_path / "run", settings)
