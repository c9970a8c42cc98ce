"""Finds and reads the files of a TF1 checkpoint; damaged files raise errors."""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.checkpoint import open_folder
from roformer_tf.checkpoint.original_files import OriginalArrays, find_checkpoint
from tests.checkpoint.conftest import assert_same_bytes, write_original

DATA = "bert_model.ckpt.data-00000-of-00001"
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 496398656\n"


@pytest.mark.parametrize(
    "name", ["", "bert_model.ckpt", "bert_model.ckpt.index", DATA, "bert_model.ckpt.meta"]
)
def test_a_checkpoint_is_found_by_any_of_its_names(folder, name):
    prefix, shards = find_checkpoint(folder / name)
    assert prefix == folder / "bert_model.ckpt"
    assert [shard.name for shard in shards] == [DATA]


def test_relative_paths_work(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert OriginalArrays("bert_model.ckpt").shapes
    assert OriginalArrays(".").shapes


@pytest.mark.parametrize("name", ["model [1]", "a*b?", "back\\slash"])
def test_names_that_tensorflow_takes_for_patterns(variables, config, tmp_path, name):
    folder = write_original(tmp_path / name, variables, config, name="model.ckpt[2]")
    (tmp_path / "model 1").mkdir()  # which the first pattern matches
    for path in (folder, folder / "model.ckpt[2]"):
        arrays = open_folder(path).arrays
        assert_same_bytes(variables, {key: arrays.read(key) for key in arrays.shapes})


def test_the_checkpoint_of_a_folder_is_found(variables, config, tmp_path):
    folder = write_original(tmp_path / "a", variables, config, name="model.ckpt-2")
    (folder / "checkpoint").unlink()
    assert find_checkpoint(folder)[0].name == "model.ckpt-2"  # the only one
    write_original(folder, variables, config, name="model.ckpt-1")
    # as TF1 wrote it: with the path of the machine that trained
    (folder / "checkpoint").write_text('model_checkpoint_path: "/training/run3/model.ckpt-2"\n')
    assert find_checkpoint(folder)[0].name == "model.ckpt-2"
    (folder / "checkpoint").unlink()
    with pytest.raises(ValueError, match=r"2 checkpoints: model.ckpt-1.index, model.ckpt-2.index"):
        find_checkpoint(folder)
    assert find_checkpoint(folder / "model.ckpt-1")[0].name == "model.ckpt-1"


def test_several_shards_are_read(variables, tmp_path):
    names = sorted(variables)
    for part in range(2):
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / f"part{part}"),
            tensor_names=names[part::2],
            shape_and_slices=[""] * len(names[part::2]),
            tensors=[tf.constant(variables[n]) for n in names[part::2]],
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / f"part{part}") for part in range(2)],
        destination_prefix=str(tmp_path / "bert_model.ckpt"),
    )
    reader = OriginalArrays(tmp_path)
    assert_same_bytes(variables, {name: reader.read(name) for name in reader.shapes})
    (tmp_path / "bert_model.ckpt.data-00001-of-00002").unlink()
    with pytest.raises(FileNotFoundError, match="bert_model.ckpt.data-00001-of-00002"):
        OriginalArrays(tmp_path)


def test_no_checkpoint_at_all(tmp_path):
    (tmp_path / "readme.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"bert_model.ckpt.index .* found readme.txt"):
        OriginalArrays(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no model.ckpt.index"):
        OriginalArrays(tmp_path / "model.ckpt")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        OriginalArrays(tmp_path / "nowhere" / "bert_model.ckpt")


INDEX = "bert_model.ckpt.index"
DAMAGE = "bert_model.ckpt.index is damaged .* Copy the file again"


@pytest.mark.parametrize(
    "name, content, message",
    [
        (INDEX, None, "index of the checkpoint is missing"),
        (DATA, None, f"expected {DATA}.*holds no weights"),
        (INDEX, LFS_POINTER.encode(), f"{INDEX} is a Git LFS pointer.*git lfs pull"),
        (DATA, LFS_POINTER.encode(), f"{DATA} is a Git LFS pointer.*git lfs pull"),
        (INDEX, b"", DAMAGE),
        (INDEX, b"not an index", DAMAGE),
        (INDEX, b"\0" * 1000, DAMAGE),
        (INDEX, slice(-100), DAMAGE),
        (DATA, slice(50_000), f"{DATA} is cut off.* of {26058 * 4:,} bytes.* has 50,000 bytes"),
    ],
    ids=str,
)
def test_damaged_files(folder, name, content, message):
    file = folder / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[content] if isinstance(content, slice) else content)
    with pytest.raises(FileNotFoundError if content is None else ValueError, match=message):
        OriginalArrays(folder)


def test_flipped_bits(folder):
    data = bytearray((folder / DATA).read_bytes())
    data[1000] ^= 255
    (folder / DATA).write_bytes(data)
    reader = OriginalArrays(folder)
    errors = []
    for name in reader.shapes:
        try:
            reader.read(name)
        except ValueError as error:
            errors.append(str(error))
            assert f"data of the variable {name!r}" in errors[-1] and "is damaged" in errors[-1]
    assert len(errors) == 1


def test_tf2_checkpoints_raise(tmp_path):
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(tmp_path / "bert_model.ckpt"))
    with pytest.raises(ValueError, match="TF2 object-based checkpoint"):
        OriginalArrays(tmp_path)


def test_layouts(folder, tmp_path):
    assert open_folder(folder).layout == open_folder(str(folder)).layout == "original"
    assert open_folder(folder / "bert_model.ckpt").path == folder
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "nothing", empty, None):
        with pytest.raises(FileNotFoundError, match="Expected an original folder"):
            open_folder(path)
    for name, content, layout in (
        ("config.json", '{"registered_name": "roformer_tf>RoFormerBackbone"}', "preset"),
        ("config.json", '{"model_type": "roformer"}', "huggingface"),
        ("bert_config.json", "", "original"),  # even beside a config.json
        ("task.json", "{}", "preset"),
    ):
        (empty / name).write_text(content)
        assert open_folder(empty).layout == layout


def test_float16_checkpoints_are_read(config, variables, tmp_path):
    half = {name: array.astype("float16") for name, array in variables.items()}
    folder = write_original(tmp_path / "half", half, config)
    reader = OriginalArrays(folder)
    assert reader.dtypes["bert/embeddings/word_embeddings"] == np.dtype("float16")
    assert_same_bytes(half, {name: reader.read(name) for name in reader.shapes})
