"""What is not offered says what to use; what is offered does what it does in Keras and bert4keras."""

import importlib
import re

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.compat.bert4keras import backend, layers, optimizers
from roformer_tf.compat.bert4keras.backend import K
from roformer_tf.compat.bert4keras.models import build_transformer_model
from roformer_tf.compat.keras.layers import Input
from roformer_tf.compat.keras.models import Model, load_model

COMPAT = "roformer_tf.compat.bert4keras"


@pytest.mark.parametrize(
    "module, name, instead",
    [
        ("backend", "recompute_grad", "recompute_activations"),
        ("layers", "MultiHeadAttention", "RotaryMultiHeadAttention"),
        ("layers", "LayerNormalization", "RMSNorm"),
        ("layers", "NoSuchLayer", "moving_from_bert4keras"),
        ("models", "BERT", "build_transformer_model"),
        ("models", "T5", "KerasHub"),
        ("optimizers", "extend_with_lookahead", "LastWeights"),
        ("optimizers", "Lion", "keras.optimizers.Lion"),
        ("snippets", "WebServing", "serve.py"),
        ("tokenizers", "SpTokenizer", "RoFormerSentencePieceTokenizer"),
    ],
)
def test_a_name_that_is_not_offered(module, name, instead):
    found = importlib.import_module(f"{COMPAT}.{module}")
    message = f"does not offer `{name}`.*{re.escape(instead)}"
    with pytest.raises(AttributeError, match=message):
        getattr(found, name)
    with pytest.raises(ImportError, match=message):
        exec(f"from {COMPAT}.{module} import {name}")


def test_names_of_k_and_keras():
    with pytest.raises(AttributeError, match="GradientTape"):
        K.gradients  # noqa: B018
    assert K.any([False, True]) and float(K.sum([1.0, 2.0])) == 3  # `any` stays Python's own there
    with pytest.raises(AttributeError, match="no such name"):
        backend.keras.engine_of_keras_1  # noqa: B018
    exec("from roformer_tf.compat.keras.callbacks import Callback")
    exec("from roformer_tf.compat.keras.layers import Dense, LSTM")
    exec("from roformer_tf.compat.keras.losses import kullback_leibler_divergence")
    exec(f"from {COMPAT}.layers import *; concatenate")


@pytest.mark.parametrize("module", ["backend", "layers", "models", "optimizers", "snippets"])
def test_all_names_of_a_module(module):
    """A script that imports `*` has the names that bert4keras' modules import from each other."""
    names = {"layers": "those of the script"}
    exec(f"from {COMPAT}.{module} import *", names)
    assert names["keras"] is backend.keras and names["K"] is K
    assert names["np"] is np and names["tf"] is tf and names["layers"] == "those of the script"
    if module in ("layers", "models"):
        assert names["Dense"] is keras.layers.Dense and names["Loss"] and names["align"]
    if module == "models":
        assert names["Model"] is Model


@pytest.fixture
def tanh():
    backend.set_gelu("TANH")
    yield
    backend.set_gelu("erf")


def test_gelu(tanh, rng):
    x = keras.ops.convert_to_tensor(10 * rng.normal(size=(3, 4)).astype("float32"))
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    transformer = build_transformer_model(
        model="bert", intermediate_size=8, hidden_act="gelu", return_keras_model=False, **sizes
    )
    dense = transformer.backbone.encoder_blocks[0].feed_forward
    assert dense.activation is backend.gelu_tanh
    for name, expected in (("gelu", "tanh"), ("gelu_tanh", "tanh"), ("gelu_erf", "erf")):
        found = backend.keras.layers.Activation(name)(x)
        np.testing.assert_array_equal(found, getattr(backend, f"gelu_{expected}")(x))
    backend.set_gelu("erf")
    assert keras.activations.get("gelu") is keras.activations.gelu
    with pytest.raises(ValueError, match="'erf' or 'tanh'"):
        backend.set_gelu("fast")


@pytest.mark.parametrize("cls", [layers.GlobalPointer, layers.EfficientGlobalPointer])
def test_the_mask_of_global_pointer(cls, rng):
    layer, mask = cls(2, 4), np.array([[1, 1, 0]])
    x = rng.normal(size=(1, 3, 8)).astype("float32")
    found = np.array(layer(x, mask=mask))
    np.testing.assert_array_equal(found, layer(x, padding_mask=mask))
    assert np.isfinite(found).sum() == 2 * 3  # spans from the first two tokens


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"model": "albert"}, ValueError, "KerasHub"),
        ({"model": "roformer", "application": "seq2seq"}, ValueError, "'unilm'"),
        ({"model": "roformer", "residual_attention_scores": True}, TypeError, "use BERT"),
        ({"model": object}, TypeError, "name of a model"),
    ],
)
def test_models_that_are_not_offered(arguments, error, message):
    with pytest.raises(error, match=message):
        build_transformer_model(**arguments)


def test_optimizers_that_are_not_extended():
    with pytest.raises(TypeError, match="weight_decay"):
        optimizers.extend_with_weight_decay(keras.optimizers.SGD)
    adamw = optimizers.extend_with_weight_decay(optimizers.BertAdam)
    with pytest.raises(ValueError, match="BertAdam_weight_decay, which has"):
        optimizers.extend_with_weight_decay(adamw)


def test_keras_adam_is_kerass(rng):
    """Without TF_KERAS, `Adam` is that of Keras, also where it is extended."""
    value = rng.normal(size=5).astype("float32")
    gradients = 1e-6 * rng.normal(size=(5, 5)).astype("float32")  # where epsilon counts
    found = []
    adam = optimizers.KerasAdam
    slow = optimizers.extend_with_parameter_wise_lr(adam)
    for optimizer in (keras.optimizers.Adam(0.01), adam(0.01), slow(0.01)):
        variable = keras.Variable(value)
        optimizer.build([variable])
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient)])
        found.append(np.array(variable))
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2])
def test_moving_average(rng, k):
    cls = optimizers.extend_with_gradient_accumulation(optimizers.BertAdam)
    cls = optimizers.extend_with_exponential_moving_average(cls)
    optimizer = cls(0.1, ema_momentum=0.7, grad_accum_steps=k)
    variable = keras.Variable(np.float32([1, 2]))
    optimizer.build([variable])
    average = np.zeros(2)
    for step in range(2 * k + 1):  # of which 3 update the weights
        optimizer.apply([keras.ops.convert_to_tensor(rng.normal(size=2).astype("float32"))])
        if step % k == 0:
            average = 0.7 * average + 0.3 * np.array(variable)
    last = np.array(variable)
    optimizer.apply_ema_weights()
    np.testing.assert_allclose(variable, average / (1 - 0.7**3), rtol=1e-5)
    optimizer.reset_old_weights()
    np.testing.assert_array_equal(variable, last)


@pytest.mark.parametrize("name", ["KerasAdam", "BertAdam", "AdaFactor"])
def test_optimizers_are_saved_with_the_arguments_of_keras(name):
    cls = optimizers.extend_with_gradient_accumulation(getattr(optimizers, name))
    ema = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2}
    for options in ({"clipnorm": 1.0}, {"global_clipnorm": 2.0}, {"clipvalue": 0.5}, ema):
        config = cls(0.1, name="mine", grad_accum_steps=3, **options).get_config()
        options = {"name": "mine", "learning_rate": 0.1, "grad_accum_steps": 3, **options}
        assert options.items() <= config.items()
        assert cls.from_config(config).get_config() == config


@pytest.mark.parametrize("cls", [layers.GlobalPointer, layers.EfficientGlobalPointer])
def test_span_layers_are_saved_with_the_arguments_of_bert4keras(cls):
    config = cls(3, 8, RoPE=False).get_config()
    assert {"heads": 3, "head_size": 8, "RoPE": False}.items() <= config.items()
    again = cls.from_config(config)
    assert (again.num_heads, again.head_dim, again.use_rope) == (3, 8, False)
    assert again.get_config() == config


def test_batches_of_any_width_and_their_errors():
    x = Input((None,))
    sums = backend.keras.layers.Lambda(lambda x: K.sum(x, axis=1, keepdims=True))(x)
    model = Model([x], [keras.layers.Dense(1)(sums)])
    model.compile("sgd", lambda y_true, y_pred: K.mean(K.square(y_true - y_pred)))

    def batches(bad=None):
        for width in (3, 4, 5, 6):
            if width == bad:
                raise RuntimeError("of the generator")
            yield [np.ones((2, width))], np.ones((2, 1))

    history = model.fit(batches(), steps_per_epoch=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    with pytest.raises(Exception, match="of the generator"):
        model.fit(batches(bad=5), steps_per_epoch=4, verbose=0)
    assert model.predict([np.ones((70, 3))]).shape == (70, 1)
    with pytest.raises(ValueError, match="1 inputs"):
        model.predict([np.ones((2, 3)), np.ones((2, 3))])


def test_weights_of_keras_2_are_refused(tmp_path):
    path = tmp_path / "old.weights"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = ["a"]
    with pytest.raises(ValueError, match="save_weights_as_checkpoint"):
        load_model(path)
    (tmp_path / "best.weights.index").touch()  # beside the data, as tf.keras saves
    with pytest.raises(ValueError, match="save_weights_as_checkpoint"):
        Model(*[Input((2,))] * 2).load_weights(tmp_path / "best.weights")
