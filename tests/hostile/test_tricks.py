"""Files that try to run code, to write or read elsewhere, or to fill the memory: nothing happens."""

import contextlib
import json
import os
import pickle
import zipfile

import h5py
import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli.shared import load_model
from tests.models import builders


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.fixture
def target(tmp_path):
    """What a trick would make."""
    yield tmp_path / "made"
    assert not (tmp_path / "made").exists()


@pytest.fixture
def preset(tmp_path):
    folder = tmp_path / "preset"
    builders.task("classifier", preprocessor={}).save_to_preset(folder)
    (folder / "SHA256SUMS").unlink()  # who can change the files can change the digests
    return folder


def load(folder):
    return roformer_tf.RoFormerTextClassifier.from_preset(folder)


def test_pickles_in_the_tokenizer_tables(preset, target):
    file = preset / "assets" / "tokenizer" / "tokenizer_tables.npz"
    with np.load(file) as stored:
        arrays = dict(stored)
    arrays["roots"] = np.array([Payload(target)], object)
    np.savez(file, **arrays)
    with pytest.raises(ValueError, match="tokenizer_tables.npz' is damaged"):
        load(preset)
    file.write_bytes(pickle.dumps(Payload(target)))
    with pytest.raises(ValueError, match="tokenizer_tables.npz' is damaged"):
        load(preset)


def test_pickles_in_pytorch_files(tmp_path, target):
    torch = pytest.importorskip("torch")
    settings = {
        "vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 8, "hidden_act": "gelu", "model_type": "roformer",
    }  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    for old in (True, False):
        torch.save(
            {"a": Payload(target)},
            folder / "pytorch_model.bin",
            _use_new_zipfile_serialization=not old,
        )
        with pytest.raises(ValueError, match="pytorch_model.bin is no plain file of weights"):
            roformer_tf.RoFormerBackbone.from_preset(folder)


@pytest.mark.parametrize("name", ["../made", "/tmp/../tmp/roformer_tf_made", "a/../../made"])
def test_archives_that_write_elsewhere(name, tmp_path, target):
    path = tmp_path / "in" / "model.keras"
    path.parent.mkdir()
    builders.task("classifier", preprocessor={}).save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "made")
        archive.writestr(f"assets/{name}", "made")
    with pytest.warns(UserWarning, match="Skipping invalid path"):
        load_model(str(path))
    assert not os.path.exists("/tmp/roformer_tf_made")
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_code_in_settings(preset, target):
    layer = keras.layers.Lambda(lambda x: x)
    code = keras.saving.serialize_keras_object(layer)
    for module, name in (("os", "mkdir"), ("builtins", "exec"), ("keras.layers", "Lambda")):
        for file in ("config.json", "task.json", "preprocessor.json", "tokenizer.json"):
            content = (preset / file).read_text()
            changed = json.loads(content)
            config = code["config"] if name == "Lambda" else {"path": str(target), "mode": 511}
            changed |= {"module": module, "class_name": name, "registered_name": name}
            (preset / file).write_text(json.dumps(changed | {"config": config}))
            with contextlib.suppress(ValueError):  # some are not read
                load(preset)
            (preset / file).write_text(content)
    load(preset)


def test_weights_that_are_stored_elsewhere(preset, tmp_path):
    """HDF5 can name another file, or raw bytes of any file, as the content of an array."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(256)) * 64)
    file = preset / "model.weights.h5"
    name = "layers/ro_former_embeddings/norm/vars/0"
    with h5py.File(file, "r+") as stored:
        shape = stored[name].shape
        del stored[name]
        stored.create_dataset(
            name, shape, "float32", external=[(str(secret), 0, 4 * int(np.prod(shape)))]
        )
    with pytest.raises(ValueError, match="cannot be loaded|damaged"):
        load(preset)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as stored:
        stored["x"] = np.zeros(shape, "float32")
    with h5py.File(file, "r+") as stored:
        del stored[name]
        stored[name] = h5py.ExternalLink(str(other), "/x")
    with pytest.raises(ValueError, match="cannot be loaded|damaged|link"):
        load(preset)


def test_an_array_that_would_fill_the_memory(preset):
    with h5py.File(preset / "model.weights.h5", "r+") as stored:
        name = "layers/ro_former_embeddings/norm/vars/0"
        del stored[name]
        stored.create_dataset(name, (10**12,), "float32", chunks=(1024,))  # no space on disk
    with pytest.raises(ValueError, match=f"{preset}"):
        load(preset)
