"""`import roformer_tf` is quiet and loads only Keras, and Keras finds every class by name."""

import gc
import importlib
import inspect
import os
import sys

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf import startup
from tests.models import builders
from tests.processes import environment_of_a_user, run_program

LOAD_IN_A_FRESH_PROCESS = """
import gc
import sys
import roformer_tf
assert gc.isenabled()
late = ["keras_hub", "tensorflow_text"]
late += [f"roformer_tf.{name}" for name in ("compat", "layers", "optimizers")]
assert not set(late) & {*sys.modules}, set(late) & {*sys.modules}
import keras
import numpy as np

folder, text = sys.argv[1:]
small = keras.saving.load_model(f"{folder}/layers.keras")
assert type(small.layers[0]) is roformer_tf.layers.RMSNorm
assert small.layers[1].activation is roformer_tf.layers.gelu
assert type(small.optimizer) is roformer_tf.optimizers.OriginalAdamW
assert "keras_hub" not in sys.modules
from tensorflow.python.util import _pywrap_util_port  # has no public name
assert _pywrap_util_port.IsMklEnabled() or sys.platform != "linux"  # also without AVX-512
import keras_hub
model = keras.saving.load_model(f"{folder}/model.keras")
preset = keras_hub.models.TextClassifier.from_preset(f"{folder}/preset")
assert type(model) is type(preset) is roformer_tf.RoFormerTextClassifier
np.save(f"{folder}/logits.npy", [m.predict([text], verbose=0) for m in (model, preset)])
"""


def run(*arguments):
    """Runs a fresh process with all libraries and TensorFlow's own log level."""
    return run_program(sys.executable, *arguments, env=environment_of_a_user())


@pytest.mark.slow
def test_import_is_quiet_and_saved_models_load(tmp_path):
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(builders.new_tokenizer())
    model = roformer_tf.RoFormerTextClassifier(builders.backbone(num_layers=1), 2, preprocessor)
    small = keras.Sequential(
        [roformer_tf.layers.RMSNorm(), keras.layers.Dense(2, activation=roformer_tf.layers.gelu)]
    )
    small.build((None, 3))
    small.compile(roformer_tf.optimizers.OriginalAdamW())
    small.optimizer.build(small.trainable_variables)
    small.save(tmp_path / "layers.keras")
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    done = run("-c", LOAD_IN_A_FRESH_PROCESS, tmp_path, "天地玄黄")
    assert (done.stdout, done.stderr) == ("", "")
    expected = model.predict(["天地玄黄"], verbose=0)
    for logits in np.load(tmp_path / "logits.npy"):
        # the same program on the same machine, in another process
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_every_class_is_found_by_name():
    for module in startup.LAZY:
        importlib.import_module(module)
    registered = {
        name.removeprefix("roformer_tf>")
        for name, value in keras.saving.get_custom_objects().items()
        if inspect.isclass(value)
        and value.__module__.startswith(tuple(f"{module}." for module in startup.LAZY))
    }
    assert registered == {name for names in startup.LAZY.values() for name in names}


def test_help_needs_neither_keras_nor_numpy():
    for arguments in (["--help"], ["fill-mask", "--help"], ["pretrain", "--help"]):
        done = run("-X", "importtime", "-m", "roformer_tf", *arguments)
        assert done.stdout.startswith("usage: python -m roformer_tf")
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
        assert "roformer_tf" in imported
        assert not imported & {"keras", "numpy", "tensorflow", "matplotlib", "rich"}


def test_garbage_collection_stays_as_the_user_has_set_it():
    assert gc.isenabled()
    startup.import_module("roformer_tf.naming")
    assert gc.isenabled()
    gc.disable()
    try:
        startup.import_module("roformer_tf.naming")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_other_lines_on_standard_error_are_kept(capfd):
    with startup._without_start_up_lines():
        os.write(2, b"I0000 00:00:1 2 port.cc:153] oneDNN custom operations are on.\n")
        os.write(2, b"E0000 00:00:1 2 x.cc:1] a real error\n")
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "E0000 00:00:1 2 x.cc:1] a real error\na warning\n"
