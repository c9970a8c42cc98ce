"""Backbones as parts of other models: any of their inputs, in any way that Keras builds models.

`test_elsewhere` runs this file on JAX, the tests of the layers that stand alone, and what is of JAX alone.
"""

import itertools
import os
import sys

import keras
import numpy as np
import pytest
from keras import ops

import roformer_tf
from tests.layers.harness import assert_equal, numpy
from tests.models import builders
from tests.processes import run_program

ON_JAX = (
    "tests/layers/test_keras_harness.py",
    "tests/layers/test_rotary_embedding.py",
    "tests/layers/test_rotary_multi_head_attention.py",
    "tests/layers/test_standalone.py",
    "tests/app/test_streaming.py::test_on_jax_the_text_comes_at_once",
)
BACKEND = keras.config.backend()
OPTIONAL = ("segment_ids", "padding_mask", "position_ids", "document_ids")
# two programs of the same sums
NOISE = 5e-6


def data(rng, batch=8, length=7):
    given = builders.inputs(rng, batch, length)
    real = given["padding_mask"]
    positions = np.broadcast_to(np.arange(length, dtype="float32"), real.shape)
    return {**given, "position_ids": positions, "document_ids": np.ones_like(real)}


def symbolic(names):
    dtypes = {"position_ids": "float32"}
    return {n: keras.Input((None,), dtype=dtypes.get(n, "int32"), name=n) for n in names}


def only(given, names):
    return {name: given[name] for name in names}


def cls_head(hidden_states):
    return keras.layers.Dense(3, activation="softmax", name="head")(hidden_states[:, 0])


def trained(model, x, rng):
    """Trains a classifier of three classes for a few steps. Returns what it predicts."""
    labels = rng.integers(0, 3, size=len(x["token_ids"]))
    # on TensorFlow without XLA, whose compilation costs ten times the training
    options = {"jit_compile": BACKEND == "jax"}
    # Steps so small that the loss falls for any labels: of 60 seeds, three rose at a rate of 1e-2.
    model.compile(keras.optimizers.SGD(1e-3), "sparse_categorical_crossentropy", **options)
    losses = model.fit(x, labels, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    return model.predict(x, verbose=0)


@pytest.mark.parametrize("count", range(len(OPTIONAL) + 1))
def test_any_of_the_inputs(count, rng):
    """The defaults are the original's: segments 0, no padding but `[PAD]`, one document."""
    backbone = builders.backbone("v1", num_layers=1)
    given = data(rng)
    for chosen in itertools.combinations(OPTIONAL, count):
        names = ("token_ids", *chosen)
        x = only(given, names)
        full = {**x}
        full.setdefault("segment_ids", np.zeros_like(given["token_ids"]))
        full.setdefault("padding_mask", (given["token_ids"] != 0).astype("int32"))
        expected = numpy(backbone(full))
        np.testing.assert_allclose(numpy(backbone(x)), expected, atol=NOISE)
        inputs = symbolic(names)
        model = keras.Model(inputs, backbone(inputs))
        assert set(model.input) == set(names)
        np.testing.assert_allclose(numpy(model(x)), expected, atol=NOISE)
    np.testing.assert_allclose(backbone.predict(x, verbose=0), expected, atol=NOISE)


def test_the_graph_has_what_a_preprocessor_makes():
    backbone = builders.backbone("v1")
    names = ("token_ids", "segment_ids", "padding_mask")
    assert tuple(backbone.input) == names
    assert backbone.output.shape == (None, None, 16)
    x = only(data(np.random.default_rng(0)), names)
    model = keras.Model(backbone.input, cls_head(backbone.output))
    assert set(model.input) == set(names)
    np.testing.assert_allclose(numpy(model(x)).sum(-1), 1, atol=1e-6)
    inner = keras.Model(backbone.input, backbone.get_layer("encoder_block_0").output)
    last = numpy(
        backbone.encoder_blocks[1](
            inner(x),
            attention_bias=backbone.attention_mask(ops.convert_to_tensor(x["padding_mask"])),
            position=backbone.position_scheme(x["token_ids"]),
        )
    )
    np.testing.assert_allclose(last, numpy(backbone(x)), atol=NOISE)


# Keras warns of each layer without weights
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("names", [("token_ids",), ("token_ids", "padding_mask", "document_ids")])
@pytest.mark.slow
def test_a_model_around_it_lives(names, rng, tmp_path):
    """Trains, saves, loads, is cloned, exported, quantized and nested."""
    x = only(data(rng), names)
    inputs = symbolic(names)
    model = keras.Model(inputs, cls_head(builders.backbone("v1", num_layers=1)(inputs)))
    expected = trained(model, x, rng)

    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=NOISE)

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(x, verbose=0), expected, atol=NOISE)

    outer = symbolic(names)
    nested = keras.Model(outer, model(outer))
    np.testing.assert_allclose(nested.predict(x, verbose=0), expected, atol=NOISE)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        model.export(tmp_path / "saved", verbose=False)
        loaded = tf.saved_model.load(tmp_path / "saved")
        np.testing.assert_allclose(numpy(loaded.serve(x)), expected, atol=NOISE)

    again.quantize("int8")
    # int8 weights; the classes stay
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=0.1)


@pytest.mark.slow
def test_two_calls_share_the_weights(rng):
    """Twin towers: one backbone, two texts, the cosine of their vectors."""
    backbone = builders.backbone("v1_pooler", num_layers=1)
    inputs = {
        f"{side}_{name}": keras.Input((None,), dtype="int32", name=f"{side}_{name}")
        for side in "ab"
        for name in ("token_ids", "segment_ids")
    }
    vectors = [
        backbone({n: inputs[f"{side}_{n}"] for n in ("token_ids", "segment_ids")})["pooled_output"]
        for side in "ab"
    ]
    model = keras.Model(inputs, keras.layers.Dot(axes=-1, normalize=True)(vectors))
    a, b = (only(data(rng), ("token_ids", "segment_ids")) for _ in "ab")
    x = {f"{side}_{n}": v for side, part in zip("ab", (a, b)) for n, v in part.items()}
    assert len(model.trainable_weights) == len(backbone.trainable_weights)
    one, two = (numpy(backbone(part)["pooled_output"]) for part in (a, b))
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
    np.testing.assert_allclose(
        model.predict(x, verbose=0)[:, 0], (one * two).sum(-1) / norms, atol=NOISE
    )
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=BACKEND == "jax")
    losses = model.fit(x, np.ones(8), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_two_backbones_and_a_recurrent_layer(rng):
    inputs = symbolic(("token_ids",))
    sizes = {**builders.SIZES, "num_layers": 1}
    one = roformer_tf.RoFormerBackbone(**sizes, name="one")
    two = roformer_tf.RoFormerBackbone(**{**sizes, "hidden_dim": 8}, name="two")
    two.trainable = False
    frozen = [w.copy() for w in two.get_weights()]
    x = keras.layers.Concatenate()([one(inputs), two(inputs)])
    x = keras.layers.Bidirectional(keras.layers.LSTM(4))(x)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))
    trained(model, only(data(rng), ("token_ids",)), rng)
    assert_equal(two.get_weights(), frozen)


@pytest.mark.slow
def test_in_a_subclassed_model_and_a_sequential(rng, tmp_path):
    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            self.backbone = builders.backbone("v1", num_layers=1)
            self.head = keras.layers.Dense(3, activation="softmax")

        def call(self, token_ids):
            return self.head(self.backbone({"token_ids": token_ids})[:, 0])

    x = only(data(rng), ("token_ids", "padding_mask"))
    labels = rng.integers(0, 3, size=8)
    model = Classifier()
    optimizer = keras.optimizers.SGD(1e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=BACKEND == "jax")
    losses = model.fit(x["token_ids"], labels, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save_weights(tmp_path / "model.weights.h5")

    sequential = keras.Sequential(
        [builders.backbone("v1", num_layers=1), keras.layers.GlobalAveragePooling1D(), model.head]
    )
    expected = model.head(numpy(sequential.layers[0](x)).mean(1))
    np.testing.assert_allclose(sequential.predict(x, verbose=0), numpy(expected), atol=NOISE)


@pytest.mark.tensorflow("a train step of TensorFlow")
@pytest.mark.slow
def test_a_train_step_of_ones_own(rng):
    import tensorflow as tf

    class Trainer(keras.Model):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = ops.mean(
                    keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"own_loss": loss}

    inputs = symbolic(("token_ids", "padding_mask"))
    model = Trainer(inputs, cls_head(builders.backbone("v1", num_layers=1, dropout=0.1)(inputs)))
    model.compile("sgd", jit_compile=False)
    x, y = only(data(rng), ("token_ids", "padding_mask")), rng.integers(0, 3, size=8)
    before = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    [loss] = model.fit(x, y, verbose=0).history["own_loss"]
    assert np.isfinite(loss)
    assert any(
        (keras.ops.convert_to_numpy(weight) != value).any()
        for weight, value in zip(model.trainable_weights, before, strict=True)
    )


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution needs JAX")
def test_data_parallel(rng):
    inputs = symbolic(("token_ids", "padding_mask"))
    x = only(data(rng), ("token_ids", "padding_mask"))
    devices = keras.distribution.list_devices("cpu")
    assert len(devices) == 4
    outputs = []
    for distribution in (None, keras.distribution.DataParallel(devices=devices)):
        keras.distribution.set_distribution(distribution)
        keras.utils.set_random_seed(1)
        model = keras.Model(inputs, cls_head(builders.backbone("v1", num_layers=1)(inputs)))
        outputs.append(trained(model, x, np.random.default_rng(1)))
    keras.distribution.set_distribution(None)
    # The sums of gradients over four devices round differently.
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)


def test_dropout_follows_training(rng):
    backbone = builders.backbone("v1", num_layers=1, dropout=0.5)
    x = only(data(rng), ("token_ids",))
    quiet = numpy(backbone(x))
    np.testing.assert_array_equal(quiet, numpy(backbone(x, training=False)))
    assert np.abs(numpy(backbone(x, training=True)) - quiet).max() > 0.1


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            {"segment_ids": np.zeros((1, 2))},
            "dictionary with token_ids, and optionally.*Received: .'seg",
        ),
        ({"token_ids": np.ones((1, 2)), "input_ids": np.ones((1, 2))}, "Received: .*'input_ids'"),
        (np.ones((1, 2)), "takes a dictionary .*Received: ndarray"),
    ],
)
def test_wrong_inputs(wrong, message):
    with pytest.raises(ValueError, match=message):
        builders.backbone("v1", num_layers=1)(wrong)


@pytest.mark.slow
@pytest.mark.tensorflow("starts the other backend")
def test_elsewhere(repository):
    pytest.importorskip("jax")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4",
    }
    command = sys.executable, "-m", "pytest", "-q", __file__, *ON_JAX
    run_program(*command, cwd=repository, env=environment)
