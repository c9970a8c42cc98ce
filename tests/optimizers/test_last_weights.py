"""The files of the last epochs, and their mean."""

import keras
import numpy as np
import pytest

from roformer_tf.optimizers import LastWeights, average_weights


@pytest.fixture
def model():
    layers = [keras.layers.Dense(3), keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def test_mean_of_the_last_epochs(model, rng, tmp_path):
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    last = LastWeights(tmp_path / "last", keep=3)
    x, y = rng.normal(size=(8, 2)), rng.normal(size=8)
    model.fit(x, y, epochs=5, verbose=0, callbacks=[last, watch])
    assert [f.name for f in last.files()] == [f"epoch-0000{i}.weights.h5" for i in (3, 4, 5)]
    assert len(list((tmp_path / "last").iterdir())) == 3  # nothing temporary is left
    last.average()
    for found, *each in zip(model.get_weights(), *seen[-3:], strict=True):
        # the one rounding of a float64 mean
        np.testing.assert_array_equal(found, np.mean(np.float64(each), axis=0).astype("float32"))

    # a run that starts again at epoch 2 leaves nothing of the epochs that it has not done
    model.fit(x, y, initial_epoch=1, epochs=2, verbose=0, callbacks=[last])
    assert [f.name for f in last.files()] == ["epoch-00002.weights.h5"]


def test_a_file_is_whole_or_not_there(model, tmp_path, monkeypatch):
    last = LastWeights(tmp_path)
    last.set_model(model)
    last.on_epoch_end(0)
    before = last.files()[0].read_bytes()

    def fail(path, **kwargs):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(model, "save_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        last.on_epoch_end(0)
    assert [f.read_bytes() for f in last.files()] == [before]


def test_files_of_other_names_stay(model, rng, tmp_path):
    other = tmp_path / "epoch-best.weights.h5"
    other.write_bytes(b"mine")
    last = LastWeights(tmp_path, keep=1)
    model.fit(rng.normal(size=(4, 2)), rng.normal(size=4), epochs=2, verbose=0, callbacks=[last])
    assert [f.name for f in last.files()] == ["epoch-00002.weights.h5"]
    assert other.read_bytes() == b"mine"


def test_epochs_of_six_digits(model, tmp_path):
    last = LastWeights(tmp_path, keep=2)
    last.set_model(model)
    for epoch in (99_997, 99_998, 99_999, 100_000):
        last.on_epoch_end(epoch)
    assert [f.name for f in last.files()] == [f"epoch-10000{i}.weights.h5" for i in (0, 1)]
    last.on_epoch_end(99_998)
    assert [f.name for f in last.files()] == ["epoch-99999.weights.h5"]


def test_refusals(model, tmp_path):
    with pytest.raises(ValueError, match="give the callback to `fit` first"):
        LastWeights(tmp_path).average()
    with pytest.raises(ValueError, match="at least one file"):
        average_weights(model, [])
    with pytest.raises(ValueError, match="keep=0"):
        LastWeights(tmp_path, keep=0)
