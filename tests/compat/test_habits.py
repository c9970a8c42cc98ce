"""What scripts for Keras 2 do, and Keras 3 alone does not do or does otherwise."""

import functools

import keras as plain_keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.compat.bert4keras.backend import K, keras
from roformer_tf.compat.bert4keras.models import build_transformer_model
from roformer_tf.compat.bert4keras.optimizers import BertAdam, extend_with_piecewise_linear_lr
from roformer_tf.compat.keras import model_files
from tests.layers.harness import assert_equal

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "hidden_act": "gelu",
}


@pytest.fixture
def x(rng):
    return rng.normal(size=(5, 3)).astype("float32")


@pytest.fixture
def model():
    inputs = keras.layers.Input((3,))
    return keras.models.Model(inputs, keras.layers.Dense(1)(inputs))


@pytest.mark.parametrize("factor", [1, 0.5])
def test_a_callback_keeps_a_model_and_changes_the_learning_rate(model, x, factor):
    class Warmup(keras.callbacks.Callback):
        def __init__(self, model):
            self.model = model
            self.rates = []

        def on_batch_begin(self, batch, logs=None):
            self.rates.append(float(K.get_value(self.model.optimizer.lr)))
            K.set_value(self.model.optimizer.lr, 0.1 * (batch + 1))

        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.lr = 0.5

    callback = Warmup(model)
    optimizer = BertAdam(0.01)
    if factor != 1:
        optimizer = extend_with_piecewise_linear_lr(BertAdam)(0.01, lr_schedule={0: factor})
    model.compile(optimizer, lambda y_true, y_pred: K.mean(y_pred))
    model.fit(x, x[:, :1], batch_size=2, callbacks=[callback], verbose=0)
    np.testing.assert_allclose(callback.rates, [0.01, 0.1, 0.2], rtol=1e-6)
    assert float(model.optimizer.learning_rate) == 0.5
    # the bias, whose gradient is 1
    np.testing.assert_allclose(model.get_weights()[1], [-0.6 * factor], rtol=1e-5)
    is_saved = any(v is model.optimizer.lr for v in model.optimizer.variables)
    assert is_saved == (factor == 1)  # as in files of version 0.2.0


def test_layers_inside_a_layer_are_built_with_the_model(x, tmp_path):
    """Otherwise a program that only predicts loads no weights for them."""

    class Twice(keras.layers.Layer):
        def build(self, input_shape):
            super().build(input_shape)
            self.dense = keras.layers.Dense(3)

        def call(self, inputs):
            return self.dense(self.dense(inputs))

        def compute_output_shape(self, input_shape):
            return input_shape

    def make():
        inputs = keras.layers.Input((3,))
        return keras.models.Model(inputs, Twice()(inputs))

    model, again = make(), make()
    model.save_weights(tmp_path / "best.weights")
    again.load_weights(tmp_path / "best.weights")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert len(model.get_weights()) == 2


def test_time_distributed_over_texts_of_any_width():
    transformer = build_transformer_model(model="bert", **SIZES)
    dense = keras.layers.Dense(3)
    scores = keras.layers.TimeDistributed(dense)(transformer.output)
    means = keras.layers.GlobalAveragePooling1D()
    outputs = [scores, dense(transformer.output), means(scores), means(dense(transformer.output))]
    model = keras.models.Model(transformer.inputs, outputs)
    for width in (4, 2):
        ids = np.arange(3 * width).reshape(3, width) % 7
        found, expected, mean, expected_mean = model.predict([ids, np.zeros_like(ids)])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(mean, expected_mean, atol=1e-6)


def test_inputs_of_predict():
    first, second = keras.layers.Input((None,)), keras.layers.Input((None,))
    model = keras.models.Model([first, second], keras.layers.Add()([first, second]))
    assert model.predict([[[2, 5, 3]], [[0, 1, 0]]]).tolist() == [[2, 6, 3]]
    for rows in (1, 33, 41):
        with pytest.raises(ValueError, match="the same number of rows"):
            model.predict([np.ones((40, 5)), np.ones((rows, 5))])


TRAINING = """
import numpy as np
from bert4keras.backend import K, keras

def run(folder):
    inputs = keras.layers.Input((3,), name="In")
    outputs = keras.layers.Dense(1, name="Out", kernel_initializer="ones")(inputs)
    model = keras.models.Model(inputs, outputs)
    model.compile("adam", "mse")
    x, y = np.arange(12.0).reshape(4, 3), {"Out": np.ones((4, 1))}
    batches = ((x, y) for _ in range(2))
    found = [
        model.train_on_batch(x, y), *model.fit(x, y, verbose=0).history["loss"],
        *model.fit(batches, steps_per_epoch=2, verbose=0).history["loss"],
        model.evaluate(x, y, sample_weight=np.arange(4.0), verbose=0),
    ]
    for name in ("best.weights", "best.h5"):
        model.save_weights(folder + name)
        found.append(model.train_on_batch(x, y))
        model.load_weights(folder + name)
        found += [int(K.get_value(model.optimizer.iterations)), model.train_on_batch(x, y)]
    scalars = [keras.layers.Lambda(f, name=f.__name__)(outputs) for f in (K.mean, K.max)]
    losses = {"mean": lambda y_true, y_pred: y_pred, "max": lambda y_true, y_pred: 2 * y_pred}
    model = keras.models.Model(inputs, scalars)
    model.compile("sgd", loss=losses)
    for _ in range(2):
        history = model.fit(x, dict.fromkeys(losses, y["Out"]), verbose=0).history
        found += [history[f"{name}loss"][0] for name in ("", "mean_", "max_")]
    return found
"""


@pytest.mark.oracle
def test_labels_by_name_the_optimizer_in_weights_and_scalar_outputs(both, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "is_tf_keras", True)
    found, expected = both(TRAINING, folder=f"{tmp_path}/")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    monkeypatch.setattr(model_files, "is_tf_keras", False)  # Keras 2 saves no optimizer
    found, _ = both(TRAINING, folder=f"{tmp_path}/")
    assert (found[5], expected[5]) == (5, 4)


def test_labels_by_name_under_a_strategy(x):
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        inputs = keras.layers.Input((3,))
        model = keras.models.Model(inputs, keras.layers.Dense(1, name="Probas")(inputs))
        model.compile("sgd", "mse", metrics=["mse"])
    before = np.mean((model(x)[:, 0] - x[:, 0]) ** 2)
    history = model.fit(x, {"Probas": x[:, :1]}, verbose=0).history
    np.testing.assert_allclose([history["loss"], history["mse"]], [[before]] * 2, rtol=1e-5)


def test_labels_by_a_wrong_name(model, x):
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="'dense.*Received: .'Probas'"):
        model.fit(x, {"Probas": x[:, :1]}, verbose=0)


def test_predict_takes_a_generator_to_its_end(model, x):
    expected = model.predict(x)
    parts = [x[:2], x[2:]]
    np.testing.assert_array_equal(model.predict(iter(parts)), expected)
    np.testing.assert_array_equal(model.predict((part, part) for part in parts), expected)
    np.testing.assert_array_equal(model.predict(iter(parts), steps=1), expected[:2])


def test_a_generator_without_batches_is_refused(model):
    model.compile("sgd", "mse")
    for run in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="a generator of at least one batch"):
            run(iter([]))


def test_weights_are_loaded_where_links_are_refused(model, tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("A required privilege is not held by the client")  # on Windows

    model.save_weights(tmp_path / "best.weights")
    saved = model.get_weights()
    model.set_weights([2 * weight + 1 for weight in saved])
    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    model.load_weights(tmp_path / "best.weights")
    assert_equal(model.get_weights(), saved)


def test_a_model_takes_no_loss(model):
    for add in (model.add_loss, model.add_metric):
        with pytest.raises(NotImplementedError, match="`Loss`"):
            add(K.mean(model.output), name="a name")


@pytest.mark.parametrize("family", ["bert", "roformer", "roformer_v2"])
def test_a_model_is_saved_and_loaded(family, tmp_path):
    transformer = build_transformer_model(model=family, with_mlm=family != "bert", **SIZES)
    first = keras.layers.Lambda(lambda x: x[:, 0])(transformer.output)
    model = keras.models.Model(transformer.inputs, keras.layers.Dense(2)(first))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=False)
    assert len(again.weights) == len(model.weights)  # the head and the embeddings share their table
    inputs = [np.array([[2, 5, 6, 0]]), np.zeros((1, 4))]
    np.testing.assert_array_equal(again.predict(inputs), model.predict(inputs))


def squared(y_true, y_pred):
    return K.mean(K.square(y_true - y_pred))


@pytest.mark.parametrize("name", ["best.h5", "test.model", "model.keras"])
def test_training_goes_on_from_a_file_of_any_name(model, x, name, tmp_path):
    def train(model):
        return [model.train_on_batch(x, x[:, :1])[0] for _ in range(3)]

    model.compile(BertAdam(0.1), squared, metrics=["mae"])
    first = train(model)
    model.save(tmp_path / name)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        keras.models.save_model(model, tmp_path / name, overwrite=False)
    expected = train(model)
    load = functools.partial(keras.models.load_model, tmp_path / name)
    assert train(load(custom_objects={"squared": squared})) == expected != first
    with pytest.warns(UserWarning, match="no function 'squared'"):
        again = load()
    assert again.predict(x).shape == (5, 1)
    again.compile(BertAdam(0.1), squared, metrics=["mae"])
    again.load_weights(tmp_path / name)
    assert train(again) != expected  # with a new optimizer


def test_files_of_plain_keras_in_the_layout_of_keras_2(model, x, tmp_path):
    """Earlier versions saved them too if a name ended in `.h5`."""
    path, expected = tmp_path / "best.h5", model.predict(x)
    plain_keras.saving.save_model(model, path)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    model.load_weights(path)
    np.testing.assert_array_equal(model.predict(x), expected)
    with pytest.raises(ValueError, match="load the file with its `load_weights`"):
        keras.models.load_model(path)


def test_checkpoints_of_any_name(model, x, tmp_path):
    model.compile("sgd", "mse")
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.{epoch}"),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights", save_weights_only=True),
    ]
    model.fit(x, x[:, :1], callbacks=callbacks, verbose=0)
    expected = model.predict(x)
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "best.1").predict(x), expected)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    model.load_weights(tmp_path / "best.weights")
    np.testing.assert_array_equal(model.predict(x), expected)


def test_weights_saved_over_others_are_loaded(tmp_path):
    """The folder of another save has digests, which would refuse the new weights."""
    backbone = roformer_tf.RoFormerBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    save_checkpoint(backbone, tmp_path / "model")
    transformer = build_transformer_model(model="roformer", return_keras_model=False, **SIZES)
    transformer.save_weights_as_checkpoint(tmp_path / "model" / "bert_model.ckpt")
    again = roformer_tf.RoFormerBackbone.from_preset(tmp_path / "model")
    assert_equal(again.get_weights(), transformer.backbone.get_weights())
