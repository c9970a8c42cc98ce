"""Models from the Hugging Face hub: a server on the loopback plays it, with and without faults."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.hf_api
import keras_hub
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import inspect_checkpoint, open_folder, save_checkpoint
from tests.checkpoint.golden import assert_same_model
from tests.checkpoint.hub_server import TOKEN, HubServer
from tests.layers.harness import numpy
from tests.models import builders
from tests.processes import environment_of_a_user

pytest.importorskip("safetensors")
NAME = "junnyu/roformer_chinese_base"
IDS = np.array([[2, 7, 9, 3]])


@pytest.fixture(scope="module")
def release(saved, tmp_path_factory):
    """The model in Hugging Face's layout, as releases have it."""
    folder = shutil.copytree(saved / "hugging_face", tmp_path_factory.mktemp("release") / "hf")
    (folder / "SHA256SUMS").unlink()
    (folder / "logo.png").write_bytes(b"a picture")
    (folder / "pytorch_model.bin").write_bytes(b"not read, as there is model.safetensors")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of `huggingface_hub`."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "hub"


@pytest.fixture
def hub(cache, release, monkeypatch):
    """A hub with the model."""
    with HubServer() as server:
        server.add(NAME, release)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def load(source=f"hf://{NAME}"):
    return roformer_tf.RoFormerMaskedLM.from_preset(source)


def files_of(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file() and ".locks" not in str(path))


def half_written(cache):
    return [path for path in files_of(cache) if "incomplete" in path.name]


def test_first_from_the_hub_then_from_the_cache(hub, masked_lm, cache):
    model = load()
    assert_same_model(model, masked_lm)
    assert model.preprocessor.tokenizer.get_vocabulary() == (
        masked_lm.preprocessor.tokenizer.get_vocabulary()
    )
    # only what is needed, and once
    assert sorted(hub.fetched()) == ["config.json", "model.safetensors", "vocab.txt"]
    hub.log.clear()
    load()
    assert not hub.fetched()
    hub.stop()
    again = load()
    assert_same_model(again, model)
    assert not half_written(cache)


def test_offline_mode(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConnectionError, match=f"hf://{NAME} cannot be fetched.*HF_HUB_OFFLINE"):
        load()
    assert not hub.log
    monkeypatch.delenv("HF_HUB_OFFLINE")
    load()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.log.clear()
    load()
    assert not hub.log


def test_a_tokenizer_needs_no_weights(hub, masked_lm):
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(f"hf://{NAME}")
    assert tokenizer.get_vocabulary() == masked_lm.preprocessor.tokenizer.get_vocabulary()
    assert sorted(hub.fetched()) == ["config.json", "vocab.txt"]
    hub.stop()
    roformer_tf.RoFormerTokenizer.from_preset(f"hf://{NAME}")
    with pytest.raises(ConnectionError, match="the cache does not have all of it"):
        load()


def test_revisions(hub, tmp_path):
    model = builders.task("masked_lm", preprocessor={})
    table = model.backbone.token_embedding.embeddings
    table.assign_add(np.ones(table.shape, "float32"))
    save_checkpoint(model, tmp_path / "other")
    hub.add(NAME, tmp_path / "other", revision="v2")
    other = load(f"hf://{NAME}@v2")
    assert_same_model(other, model)
    commit = hub.commit(NAME, "main")[0]
    first = load(f"hf://{NAME}@{commit}")
    assert not np.array_equal(numpy(first({"token_ids": IDS})), numpy(other({"token_ids": IDS})))
    assert open_folder(f"hf://{NAME}@v2").layout == "original"
    assert inspect_checkpoint(f"hf://{NAME}@v2").complete
    with pytest.raises(FileNotFoundError, match=f"hf://{NAME}@v3 does not exist.*no branch.*'v3'"):
        load(f"hf://{NAME}@v3")


def test_the_name_of_a_repository_shows_the_masking(hub, release):
    hub.add("user/chinese-gpt", release)
    config = json.loads((release / "config.json").read_text())
    del config["masking"]
    hub.repos["user/chinese-gpt"]["main"]["config.json"] = json.dumps(config).encode()
    with pytest.warns(UserWarning, match="took masking='causal' from the name"):
        backbone = roformer_tf.RoFormerBackbone.from_preset("hf://user/chinese-gpt")
    assert backbone.masking == "causal"


def test_a_broken_transfer_goes_on(hub, cache, release, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100)
    size = (release / "model.safetensors").stat().st_size
    hub.cut["model.safetensors"] = size // 3
    load()
    ranges = [r for method, path, r in hub.log if method == "GET" and "/storage/" in path]
    assert ranges == [None, f"bytes={size // 3 // 100 * 100}-"]
    assert not half_written(cache)


@pytest.mark.parametrize("file", ["model.safetensors", "vocab.txt"])
def test_a_wrong_digest(hub, cache, file):
    hub.wrong.add(file)
    with pytest.raises(ValueError, match=f"{file} of hf://{NAME} is not the file .* announced"):
        load()
    assert not half_written(cache)
    hub.wrong.clear()
    load()  # fetches it again
    assert hub.fetched().count(file) == 2


def test_a_changed_file_in_the_cache(hub, cache):
    load()
    blob = max(files_of(cache), key=lambda path: path.stat().st_size).resolve()
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    hub.stop()
    with pytest.raises(ValueError, match="model.safetensors of .* removed from the cache"):
        load()


def test_a_missing_file(hub, cache):
    hub.lost.add("model.safetensors")
    with pytest.raises(FileNotFoundError, match=f"hf://{NAME} lacks a file .*model.safetensors"):
        load()
    assert not half_written(cache)
    del hub.repos[NAME]["main"]["model.safetensors"]
    del hub.repos[NAME]["main"]["pytorch_model.bin"]
    hub.lost.clear()
    with pytest.raises(
        FileNotFoundError, match="model.safetensors is missing: it holds the weight"
    ):
        load()


def test_repositories_that_are_not_there_or_closed(hub, monkeypatch):
    with pytest.raises(FileNotFoundError, match="hf://user/none does not exist at .* private"):
        load("hf://user/none")
    hub.private.add(NAME)
    with pytest.raises(FileNotFoundError, match="HF_TOKEN"):
        load()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(PermissionError, match=r"is refused by .* \(401\): the token is wrong"):
        load()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    load()
    with pytest.raises(FileNotFoundError, match="hf://user/none does not exist"):  # a 404
        load("hf://user/none")
    hub.gated.add(NAME)
    with pytest.raises(PermissionError, match="is gated: accept its conditions"):
        load()


def test_a_repository_without_a_model(hub):
    hub.repos["user/data"] = {"main": {"README.md": b"#", "train.csv": b"1"}}
    with pytest.raises(FileNotFoundError) as error:
        load("hf://user/data")
    for part in ("bert_config.json", "model.safetensors", "tf_model.h5", "pytorch_model.bin",
                 "save_to_preset", ".zip", "hf://user/name@revision", "train.csv"):  # fmt: skip
        assert part in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "hf://",
        "hf://a/b/c",
        "hf://a/b@",
        "hf://a b/c",
        "hf://../x",
        "hf://a/b@/etc",
        "hf://a/b@../x",
    ],
)
def test_names_that_are_none(hub, source):
    with pytest.raises(ValueError, match="hf://user/name@revision"):
        load(source)
    assert not hub.log


def test_a_server_that_fails(hub):
    hub.failing = 503
    with pytest.raises(ConnectionError, match="cannot be reached .it answered 503"):
        load()
    hub.failing = None
    load()
    hub.failing = 503
    load()  # from the cache


def test_errors_of_the_files_name_the_source(hub, masked_lm):
    hub.repos[NAME]["main"]["config.json"] = b"{"
    with pytest.raises(ValueError, match=f"not valid JSON.*while loading hf://{NAME}"):
        load()
    with pytest.raises(ValueError, match="a folder on this machine to save to"):
        masked_lm.save_to_preset(f"hf://{NAME}")


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own
def test_an_uploaded_preset_loads_again(hub, masked_lm, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
    for name, value in (("ENDPOINT", hub.url),
                        ("HUGGINGFACE_CO_URL_TEMPLATE",
                         hub.url + "/{repo_id}/resolve/{revision}/{filename}")):  # fmt: skip
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    masked_lm.save_to_preset(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_bytes()
    hub.repos["me/mine"] = {"main": {"README.md": b"the first one"}}
    keras_hub.upload_preset("hf://me/mine", str(tmp_path / "saved"))
    published = hub.repos["me/mine"]["main"]
    assert published["README.md"] == card
    assert {"config.json", "model.weights.h5", "task.json", "SHA256SUMS"} <= set(published)
    model = load("hf://me/mine")
    assert_same_model(model, masked_lm)
    assert "README.md" not in hub.fetched()
    theirs = keras_hub.models.MaskedLM.from_preset("hf://me/mine")  # KerasHub's own way
    assert_same_model(theirs, masked_lm)
    hub.repos["me/mine"]["main"]["README.md"] = b"# Edited on the hub"
    load("hf://me/mine")


@pytest.mark.slow
def test_the_command_line_and_environment_variables(hub, tmp_path):
    """Nothing is patched here: only the variables that a user sets."""
    environment = environment_of_a_user(
        HF_HOME=str(tmp_path / "home"), HF_ENDPOINT=hub.url, HF_HUB_DISABLE_PROGRESS_BARS="1"
    )

    def run(*arguments, **variables):
        command = [sys.executable, "-m", "roformer_tf", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**environment, **variables}
        )
        return done.returncode, done.stdout, done.stderr

    status, output, errors = run("inspect", f"hf://{NAME}", "--json")
    assert (status, errors) == (0, "")
    assert json.loads(output)["layout"] == "huggingface"
    assert Path(tmp_path / "home" / "hub").is_dir()
    hub.stop()
    status, output, errors = run(
        "fill-mask", f"hf://{NAME}", "天[MASK]", "--json", HF_HUB_OFFLINE="1"
    )
    assert (status, errors) == (0, "") and json.loads(output)["masks"]
    status, output, errors = run("inspect", "hf://user/none")
    assert status == 2 and errors.startswith("error: hf://user/none cannot be fetched")
