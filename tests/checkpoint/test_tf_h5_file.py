"""`tf_model.h5` of the TensorFlow models that transformers 4 had."""

import json
import shutil

import h5py
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import convert, inspect_checkpoint, load_checkpoint
from tests.checkpoint.conftest import random_folder
from tests.checkpoint.other_files import take_tensors, write_tf_h5
from tests.layers.harness import assert_equal, numpy

safetensors = pytest.importorskip("safetensors.numpy")

# As `TFRoFormerForMaskedLM(RoFormerConfig(embedding_size=24, …)).save_pretrained` of transformers
# 4.46 writes them, with the shapes of hidden_size=32, intermediate_size=64, vocab_size=200.
NAMES = """
mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/bias:0 200
mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/transform/LayerNorm/beta:0 24
mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/transform/LayerNorm/gamma:0 24
mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/transform/dense/bias:0 24
mlm___cls/tf_ro_former_for_masked_lm/mlm___cls/predictions/transform/dense/kernel:0 32 24
mlm___cls/tf_ro_former_for_masked_lm/roformer/embeddings/LayerNorm/beta:0 24
mlm___cls/tf_ro_former_for_masked_lm/roformer/embeddings/LayerNorm/gamma:0 24
mlm___cls/tf_ro_former_for_masked_lm/roformer/embeddings/token_type_embeddings/embeddings:0 2 24
mlm___cls/tf_ro_former_for_masked_lm/roformer/embeddings/word_embeddings/weight:0 200 24
roformer/tf_ro_former_for_masked_lm/roformer/embeddings/LayerNorm/beta:0 24
roformer/tf_ro_former_for_masked_lm/roformer/embeddings/LayerNorm/gamma:0 24
roformer/tf_ro_former_for_masked_lm/roformer/embeddings/token_type_embeddings/embeddings:0 2 24
roformer/tf_ro_former_for_masked_lm/roformer/embeddings/word_embeddings/weight:0 200 24
roformer/tf_ro_former_for_masked_lm/roformer/embeddings_project/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/embeddings_project/kernel:0 24 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/embed_positions/embeddings:0 512 8
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/output/LayerNorm/beta:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/output/LayerNorm/gamma:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/output/dense/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/output/dense/kernel:0 32 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/key/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/key/kernel:0 32 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/query/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/query/kernel:0 32 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/value/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/attention/self/value/kernel:0 32 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/intermediate/dense/bias:0 64
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/intermediate/dense/kernel:0 32 64
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/output/LayerNorm/beta:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/output/LayerNorm/gamma:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/output/dense/bias:0 32
roformer/tf_ro_former_for_masked_lm/roformer/encoder/layer_._0/output/dense/kernel:0 64 32
"""


@pytest.fixture
def hf(tmp_path, rng):
    """A Hugging Face folder of one layer, and the tensors in it."""
    folder = random_folder(
        tmp_path / "original", rng, heads=("mlm",), embedding_size=24, num_hidden_layers=1
    )
    convert(folder, tmp_path / "hf")
    (tmp_path / "hf" / "SHA256SUMS").unlink()
    return tmp_path / "hf", safetensors.load_file(tmp_path / "hf" / "model.safetensors")


@pytest.fixture
def h5(hf):
    """The same with `tf_model.h5` alone."""
    folder, _ = hf
    write_tf_h5(folder / "tf_model.h5", take_tensors(folder))
    return folder


def load(folder):
    return roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None)


def test_the_tests_write_the_names_of_transformers(h5):
    found = {}
    with h5py.File(h5 / "tf_model.h5") as stored:
        stored.visititems(
            lambda path, node: found.update({path: node.shape}) if hasattr(node, "shape") else None
        )
    wanted = dict(line.split(" ", 1) for line in NAMES.strip().splitlines())
    assert found == {path: tuple(map(int, size.split())) for path, size in wanted.items()}


def test_the_weights_are_those_of_safetensors(hf, tmp_path):
    folder, _ = hf
    other = tmp_path / "h5"
    shutil.copytree(folder, other)
    write_tf_h5(other / "tf_model.h5", take_tensors(other))
    assert_equal(load(folder).weights, load(other).weights)
    report = inspect_checkpoint(other)
    assert report.complete and report.source.endswith("tf_model.h5")
    convert(other, tmp_path / "original again")
    load(tmp_path / "original again")


def test_a_backbone_alone(hf):
    folder, tensors = hf
    wanted = roformer_tf.RoFormerBackbone.from_preset(folder)
    tensors = {name: array for name, array in tensors.items() if name.startswith("roformer.")}
    (folder / "model.safetensors").unlink()
    write_tf_h5(folder / "tf_model.h5", tensors, "tf_ro_former_model")
    with h5py.File(folder / "tf_model.h5", "r+") as stored:
        del stored["mlm___cls"]
    assert_equal(roformer_tf.RoFormerBackbone.from_preset(folder).weights, wanted.weights)
    with pytest.raises(ValueError, match="needs a masked-LM head, and .*tf_model.h5 has none"):
        load(folder)


def test_shards(h5):
    """Shards name their arrays by the variables alone."""
    wanted = load(h5)
    weight_map = {}
    with h5py.File(h5 / "tf_model.h5") as stored:
        paths = [line.split()[0] for line in NAMES.strip().splitlines()]
        names = sorted(
            {path.split("tf_ro_former_for_masked_lm/")[1]: path for path in paths}.items()
        )
        for part in range(2):
            file = f"tf_model-0000{part + 1}-of-00002.h5"
            with h5py.File(h5 / file, "w") as shard:
                for name, path in names[part::2]:
                    shard[name] = stored[path][()]
                    weight_map[f"tf_ro_former_for_masked_lm/{name}"] = file
    (h5 / "tf_model.h5").unlink()
    (h5 / "tf_model.h5.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_equal(load(h5).weights, wanted.weights)


def test_the_order_of_files(h5, hf):
    (h5 / "pytorch_model.bin").write_bytes(b"not read")
    load(h5)
    safetensors.save_file(hf[1], h5 / "model.safetensors")
    (h5 / "tf_model.h5").write_bytes(b"not read")
    load(h5)
    assert inspect_checkpoint(h5 / "model.safetensors").complete
    with pytest.raises(ValueError, match="tf_model.h5 is damaged"):
        load_checkpoint(load(h5), h5 / "tf_model.h5")


def test_bfloat16_in_safetensors(hf):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    folder, tensors = hf
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    safetensors.save_file(rounded, folder / "model.safetensors")
    table = numpy(load(folder).backbone.token_embedding.embeddings)
    name = "roformer.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(table, rounded[name].astype("float32"))


@pytest.mark.parametrize("how", ["two copies", "elsewhere", "virtual", "link", "cut", "huge"])
def test_damaged_and_hostile_files(h5, how, tmp_path):
    file = h5 / "tf_model.h5"
    path = "roformer/tf_ro_former_for_masked_lm/roformer/embeddings/LayerNorm/beta:0"
    (tmp_path / "secret").write_bytes(bytes(96))
    with h5py.File(file, "r+") as stored:
        if how == "two copies":
            stored[path][...] += 1
        elif how == "elsewhere":
            del stored[path]
            stored.create_dataset(path, (24,), "f4", external=[(str(tmp_path / "secret"), 0, 96)])
        elif how == "virtual":
            layout = h5py.VirtualLayout((24,), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "x.h5"), "x", (24,))
            del stored[path]
            stored.create_virtual_dataset(path, layout)
        elif how == "link":
            del stored[path], stored[f"mlm___cls/{path.removeprefix('roformer/')}"]
            stored[path] = h5py.ExternalLink(str(tmp_path / "x.h5"), "/x")
        elif how == "huge":
            for copy in (path, f"mlm___cls/{path.removeprefix('roformer/')}"):  # to be compared
                del stored[copy]
                stored.create_dataset(copy, (10**12,), "f4", chunks=(1024,))
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    message = {
        "two copies": "are the same tensor, but their numbers differ",
        "elsewhere": "is refused: .* is stored in another file",
        "virtual": "is refused: .* is stored in another file",
        "link": r"1 missing[\s\S]*embeddings/LayerNorm/beta",
        "cut": "tf_model.h5 is damaged or cut off",
        "huge": "is refused: .* would fill the memory",
    }[how]
    with pytest.raises(ValueError, match=message):
        load(h5)
