"""Damaged files are named: digests, settings out of range, indexes of shards, PyTorch files."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import inspect_checkpoint, load_checkpoint, save_checkpoint
from roformer_tf.checkpoint.damage import check_file, named_errors, read_json
from tests.checkpoint.other_files import take_tensors
from tests.layers.harness import assert_equal
from tests.processes import run_program

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def copy(saved, tmp_path):
    """Function that copies a layout, without digests unless they are asked for."""

    def copy(layout, digests=False):
        folder = tmp_path / layout
        shutil.copytree(saved / layout, folder)
        if not digests:
            (folder / "SHA256SUMS").unlink()
        return folder

    return copy


@contextlib.contextmanager
def without_rights():
    """Root may read everything, so it is somebody else in here."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("layout", ["original", "hugging_face", "preset"])
def test_files_that_must_not_be_read_are_named(saved, layout, digests):
    load(saved / layout)  # whatever is imported on first use
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        folder = Path(top) / layout
        shutil.copytree(saved / layout, folder)
        for part in (folder, *folder.rglob("*")):
            part.chmod(0o755 if part.is_dir() else 0o644)
        if not digests:
            (folder / "SHA256SUMS").unlink()
        with without_rights():
            load(folder)
        files = [part for part in folder.rglob("*") if part.is_file() and part.name != "README.md"]
        for file in (*files, folder):
            mode = file.stat().st_mode
            file.chmod(0)
            try:
                with without_rights():
                    load(folder)
            except (ValueError, OSError) as error:
                assert file.name in str(error) or str(folder) in str(error), error
            else:
                assert not digests and file.name in UNUSED, f"{file.name} was not missed"
            file.chmod(mode)


# Written beside what a masked LM reads, and needed by others only.
UNUSED = {"checkpoint", "metadata.json"}


def change(folder, name, **values):
    file = folder / name
    config = json.loads(file.read_text())
    target = config["config"] if "registered_name" in config else config
    target.update(values)
    file.write_text(json.dumps(config))


def load(folder):
    return roformer_tf.RoFormerMaskedLM.from_preset(folder)


@pytest.mark.parametrize("layout", ["original", "hugging_face", "preset"])
def test_every_changed_bit_is_noticed(copy, layout, rng):
    folder = copy(layout, digests=True)
    sums = run_program("sha256sum", "--check", "SHA256SUMS", cwd=folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    assert len(files) == len(sums.stdout.splitlines()) >= 3
    for file in files:
        if file.name == "README.md":
            continue  # people may edit it
        good = file.read_bytes()
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=f"{file.name} has changed since it was saved"):
            load(folder)
        file.write_bytes(good)
    files[0].unlink()
    with pytest.raises(FileNotFoundError, match="it was saved with the model"):
        load(folder)


def test_digests_may_be_deleted_or_damaged(copy):
    folder = copy("original", digests=True)
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    change(folder, "bert_config.json", initializer_range=0.03)
    with pytest.raises(ValueError, match="on purpose, delete its line"):
        load(folder)
    assert "has changed" in "".join(inspect_checkpoint(folder).notes)
    (folder / "SHA256SUMS").write_text("".join(x for x in lines if "bert_config" not in x))
    load(folder)
    (folder / "SHA256SUMS").write_text("half a line")
    with pytest.raises(ValueError, match="SHA256SUMS is damaged: expected lines such as"):
        load(folder)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../x\n")
    with pytest.raises(ValueError, match="outside of its folder"):
        load(folder)


BAD = [float("nan"), -1, 1e30, True, "x", [1e-12], {}]


@pytest.mark.parametrize("layout", ["original", "hugging_face"])
def test_settings_out_of_range_are_named(copy, layout):
    name = {"original": "bert_config.json", "hugging_face": "config.json"}[layout]
    folder = copy(layout)
    good = (folder / name).read_text()
    for key in ("layer_norm_eps", "initializer_range", "vocab_size", "hidden_size",
                "num_hidden_layers", "type_vocab_size", "max_position_embeddings",
                "hidden_dropout_prob"):  # fmt: skip
        for value in [*BAD, 10**12]:
            change(folder, name, **{key: value})
            with pytest.raises(ValueError, match=rf"`{key}` in .*{name} must be"):
                load(folder)
        (folder / name).write_text(good)


def test_sizes_are_compared_before_a_model_is_built(copy, monkeypatch):
    def build(*args, **kwargs):
        raise AssertionError("a model was built")

    monkeypatch.setattr(roformer_tf.RoFormerBackbone, "__init__", build)
    for layout, name, sizes in (
        ("original", "bert_config.json", {"vocab_size": 2 * 10**9, "num_hidden_layers": 9_999}),
        ("original", "bert_config.json", {"type_vocab_size": 0}),
        ("hugging_face", "config.json", {"intermediate_size": 10**6, "embedding_size": 4}),
        ("preset", "config.json", {"vocabulary_size": 10**12}),
        ("preset", "config.json", {"num_layers": 10**6}),
    ):
        folder = copy(layout)
        change(folder, name, **sizes)
        for key in sizes:
            with pytest.raises(
                ValueError, match=f"(?s){name}.*`{key}` is|`{key}` in .*{name} must"
            ):
                load(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "null", "{}", "[" * 200_000, '{"weight_map": 3}', '{"weight_map": {"a": 3}}',
     '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": {"a": "/etc/passwd"}}'],
)  # fmt: skip
def test_indexes_of_shards(copy, content):
    folder = copy("hugging_face")
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(ValueError, match="index.json (must hold|is not valid JSON)"):
        load(folder)


def test_weights_must_have_float_dtypes(copy):
    folder = copy("hugging_face")
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    name = "roformer.embeddings.LayerNorm.weight"
    safetensors.save_file({**tensors, name: tensors[name].view("int32")}, file)
    with pytest.raises(ValueError, match=f"{name} must have a float dtype. Received: int32"):
        load(folder)


def test_pytorch_files_of_the_old_form(copy, saved):
    torch = pytest.importorskip("torch")
    folder = copy("hugging_face")
    arrays = take_tensors(folder)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    file = folder / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    assert_equal(load(folder).weights, load(saved / "preset").weights)
    for content in (b"", file.read_bytes()[:-100], b"\x80\x02].", bytes(1000)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="pytorch_model.bin is damaged, cut off"):
            load(folder)
    torch.save([1, 2], file)
    with pytest.raises(ValueError, match="must hold a dict of tensors.*Received: list"):
        load(folder)


@pytest.mark.parametrize("content", ["{", "[]", "null", "{}", '{"class_name": 3}', "[" * 200_000])
@pytest.mark.parametrize("name", ["config.json", "task.json", "tokenizer.json"])
def test_damaged_settings_of_a_preset(copy, name, content):
    folder = copy("preset")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} (must hold|is not valid JSON)"):
        load(folder)


def test_a_task_that_does_not_say_how_texts_become_tokens(copy):
    folder = copy("preset")
    task = json.loads((folder / "task.json").read_text())
    del task["config"]["preprocessor"]
    (folder / "task.json").write_text(json.dumps(task))
    with pytest.raises(ValueError, match="task.json must have `preprocessor`, or `null`"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", bytes(10_000), None])
@pytest.mark.parametrize("name", ["model.weights.h5", "task.weights.h5"])
def test_damaged_weights_of_a_preset(copy, name, content):
    folder = copy("preset")
    file = folder / name
    file.write_bytes(file.read_bytes()[:-1000] if content is None else content)
    with pytest.raises(ValueError, match=f"{name} is damaged or cut off"):
        load(folder)


@pytest.mark.parametrize("layout", ["original", "preset"])
def test_weights_that_are_not_finite_are_named(copy, layout):
    folder = copy(layout)
    model = load(folder)
    gamma = model.backbone.embeddings.norm.gamma
    gamma.assign(np.full(gamma.shape, np.nan))
    if layout == "original":
        save_checkpoint(model, folder)
        name = "bert/embeddings/LayerNorm/gamma"
    else:
        with h5py.File(folder / "model.weights.h5", "r+") as stored:
            stored["layers/ro_former_embeddings/norm/vars/0"][...] = np.inf
        name = "norm/"
    with pytest.raises(ValueError, match=f"{name}.* holds NaN or infinite values"):
        load(folder)
    if layout == "original":
        report = load_checkpoint(model, folder, strict=False)
        assert report.complete


def test_what_is_not_a_file_is_named(tmp_path):
    file = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="file is missing: why"):
        check_file(file, "why")
    file.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="is a link to nowhere, which does not exist"):
        check_file(file, "why")
    file.unlink()
    file.symlink_to("file")
    with pytest.raises(FileNotFoundError, match="is a link to file, which leads back to it"):
        check_file(file, "why")
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="must be a file, but is a pipe or a device"):
        check_file(file, "why")
    with pytest.raises(ValueError, match="must be a file, but is a folder"):
        read_json(tmp_path, "why")


def test_errors_from_below_are_explained():
    with pytest.raises(ValueError, match="^there cannot be loaded: KeyError: 'a'. Either a file"):
        with named_errors("there"):
            {}["a"]
    with pytest.raises(ValueError, match=r"must be .* \(while loading there\)$"):
        with named_errors("there"):
            roformer_tf.RoFormerBackbone(0, 1, 1, 2, 2)
