"""Models in `.zip` files: those of the releases, several in one, and those that are tricks."""

import os
import shutil
import stat
import struct
import warnings
import zipfile

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import (
    convert,
    inspect_checkpoint,
    load_checkpoint,
    save_checkpoint,
    zip_file,
)
from roformer_tf.cli.shared import load_model
from tests.checkpoint.golden import assert_same_model
from tests.models import builders

NAME = "chinese_roformer_L-12_H-768_A-12"


@pytest.fixture(scope="module")
def folder(masked_lm, tmp_path_factory):
    folder = save_checkpoint(masked_lm, tmp_path_factory.mktemp("original") / NAME)
    (folder / "SHA256SUMS").unlink()  # releases have none
    (folder / "bert_model.ckpt.meta").write_bytes(b"a graph of no use")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_zip(path, folder, names=(NAME,), compression=zipfile.ZIP_DEFLATED, extra=()):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in names:
            archive.mkdir(name) if name else None
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    inner = file.relative_to(folder).as_posix()
                    archive.write(file, f"{name}/{inner}" if name else inner)
        for name, content in extra:
            archive.writestr(name, content)
    return path


@pytest.fixture
def archive(cache, folder, tmp_path):
    """As the release has it: one folder, and what macOS adds."""
    extra = [(f"__MACOSX/{NAME}/._bert_config.json", "junk"), ("readme.txt", "hello")]
    return write_zip(tmp_path / f"{NAME}.zip", folder, extra=extra)


def load(source):
    return roformer_tf.RoFormerMaskedLM.from_preset(source)


def copies(cache):
    return sorted((cache / "unpacked").iterdir()) if (cache / "unpacked").exists() else []


def test_the_release_is_read_where_it_lies(archive, masked_lm, cache, folder, tmp_path):
    model = load(str(archive))
    assert_same_model(model, masked_lm)
    assert model.preprocessor.tokenizer.get_vocabulary() == (
        masked_lm.preprocessor.tokenizer.get_vocabulary()
    )
    (copy,) = copies(cache)
    assert sorted(file.name for file in (copy / NAME).iterdir()) == sorted(
        file.name for file in folder.iterdir() if file.suffix != ".meta"
    )
    assert [path.name for path in copy.iterdir()] == [NAME]  # nothing else of the archive
    before = {file: file.stat().st_mtime_ns for file in (copy / NAME).iterdir()}
    assert_same_model(load(f"{archive}/{NAME}"), masked_lm)
    roformer_tf.RoFormerTokenizer.from_preset(archive)
    assert inspect_checkpoint(archive).complete
    assert load_checkpoint(model, archive).complete
    assert_same_model(load_model(str(archive), "masked_lm")[0], masked_lm)
    assert {file: file.stat().st_mtime_ns for file in (copy / NAME).iterdir()} == before
    convert(archive, tmp_path / "hf", to="huggingface")
    assert_same_model(load(tmp_path / "hf"), masked_lm)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["cache", archive.name, "hf"]


def test_other_layouts_and_places_in_the_archive(cache, folder, masked_lm, tmp_path):
    assert_same_model(load(write_zip(tmp_path / "flat.ZIP", folder, [""])), masked_lm)
    assert_same_model(load(write_zip(tmp_path / "deep.zip", folder, ["a/b/c"])), masked_lm)
    convert(folder, tmp_path / "hf")
    assert_same_model(load(write_zip(tmp_path / "hf.zip", tmp_path / "hf")), masked_lm)
    masked_lm.save_to_preset(tmp_path / "preset")
    stored = write_zip(tmp_path / "preset.zip", tmp_path / "preset", ["m"], zipfile.ZIP_STORED)
    assert_same_model(load(stored), masked_lm)


def test_the_name_of_the_folder_shows_the_masking(cache, folder, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    config = (plain / "bert_config.json").read_text()
    (plain / "bert_config.json").write_text(config.replace('"masking": "bidirectional",', ""))
    archive = write_zip(tmp_path / "x.zip", plain, ["chinese_roformer-gpt-char_L-12_H-768_A-12"])
    with pytest.warns(UserWarning, match="took masking='causal' from the name"):
        assert roformer_tf.RoFormerBackbone.from_preset(archive).masking == "causal"


def test_several_models(cache, folder, masked_lm, tmp_path):
    archive = write_zip(tmp_path / "models.zip", folder, ["one", "two"])
    with pytest.raises(ValueError) as error:
        load(archive)
    assert f"{archive} holds 2 models. Name one of them: {archive}/one, {archive}/two." in str(
        error.value
    )
    assert_same_model(load(f"{archive}/two"), masked_lm)
    assert [copy.name for copy in copies(cache)[0].iterdir()] == ["two"]
    with pytest.raises(
        FileNotFoundError, match="no model in a folder 'three'. Models in it: .*/on"
    ):
        load(f"{archive}/three")


def test_an_archive_made_by_macos(cache, folder, masked_lm, tmp_path):
    """It has a second file for each, with what the file system knows of it."""
    names = [f"__MACOSX/{NAME}/._{file.name}" for file in folder.iterdir()]
    extra = [(name, b"\0\5\x16\7") for name in names]
    assert_same_model(load(write_zip(tmp_path / "x.zip", folder, extra=extra)), masked_lm)


def test_an_archive_without_a_model(cache, tmp_path):
    path = tmp_path / "x.zip"
    for names in ((), ("notes.txt", "vocab.txt")):
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "x")
        with pytest.raises(FileNotFoundError, match="No checkpoint in .*x.zip. Expected an orig"):
            load(path)
    with pytest.raises(FileNotFoundError, match="No checkpoint at .*none.zip"):
        load(tmp_path / "none.zip")


def test_a_changed_archive_is_unpacked_again(archive, cache, tmp_path):
    load(archive)
    other = builders.task("masked_lm", preprocessor={})
    table = other.backbone.token_embedding.embeddings
    table.assign_add(np.ones(table.shape, "float32"))
    write_zip(archive, save_checkpoint(other, tmp_path / "other"))
    assert_same_model(load(archive), other)
    for copy in copies(cache):  # a file that somebody has removed
        for file in copy.glob(f"{NAME}/vocab.txt"):
            file.unlink()
    assert_same_model(load(archive), other)


def test_only_the_last_copies_are_kept(cache, folder, tmp_path):
    for number in range(zip_file.KEPT_COPIES + 2):
        archive = write_zip(tmp_path / f"{number}.zip", folder)
        inspect_checkpoint(archive)
        newest = max(copies(cache), key=lambda path: path.stat().st_mtime)
        os.utime(newest, (number, number))
    assert len(copies(cache)) == zip_file.KEPT_COPIES


def test_without_a_cache(archive, cache, masked_lm, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", "")
    assert_same_model(load(archive), masked_lm)
    assert not cache.exists()
    (place,) = zip_file._TEMPORARY.values()
    assert (place / NAME / "vocab.txt").exists()
    assert_same_model(load(archive), masked_lm)
    assert list(zip_file._TEMPORARY.values()) == [place]
    shutil.rmtree(place)
    zip_file._TEMPORARY.clear()


LINK = zipfile.ZipInfo(f"{NAME}/bert_model.ckpt.index")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16
DEVICE = zipfile.ZipInfo("pipe")
DEVICE.external_attr = (stat.S_IFIFO | 0o777) << 16


@pytest.mark.parametrize(
    "name, message",
    [
        ("../made", "leads out of the folder"),
        (f"{NAME}/../../made", "leads out of the folder"),
        ("/tmp/roformer_tf_made", "leads out of the folder"),
        ("C:\\made", "leads out of the folder"),
        ("..\\made", "leads out of the folder"),
        (LINK, "is a link or a device"),
        (DEVICE, "is a link or a device"),
        (f"{NAME}/vocab.txt", "has .* twice"),
    ],
    ids=str,
)
def test_names_that_are_tricks(cache, folder, tmp_path, name, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        archive = write_zip(tmp_path / "x.zip", folder, extra=[(name, "/etc/passwd")])
    with pytest.raises(ValueError, match=f"x.zip .*{message}"):
        load(archive)
    assert not copies(cache)
    assert not os.path.exists("/tmp/roformer_tf_made") and not (tmp_path / "made").exists()


def test_a_bomb(cache, folder, tmp_path):
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as stored:
        for file in folder.iterdir():
            if file.name != "vocab.txt":
                stored.write(file, f"{NAME}/{file.name}")
        with stored.open(f"{NAME}/vocab.txt", "w") as stream:
            for _ in range(64):
                stream.write(bytes(2**20))
    assert archive.stat().st_size < 2**20
    with pytest.raises(ValueError, match="vocab.txt' unpacks to 67,108,864 bytes .* as a zip bomb"):
        load(archive)
    assert not copies(cache)


def test_a_file_that_is_larger_than_it_says(archive, cache):
    """The directory promises 4 bytes; the data has more."""
    data = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as stored:
        info = stored.getinfo(f"{NAME}/vocab.txt")
    size = struct.pack("<I", info.file_size)
    for place in _all(data, size):
        data[place : place + 4] = struct.pack("<I", 4)
    archive.write_bytes(data)
    with pytest.raises(ValueError, match=f"{archive} is damaged, cut off .*CRC"):
        load(archive)
    assert not copies(cache)


def test_files_that_share_their_bytes(archive, cache):
    """Many names of one place in the archive: a bomb that no ratio shows."""
    with zipfile.ZipFile(archive) as stored:
        infos = stored.infolist()
    big = max(infos, key=lambda info: info.compress_size)
    with zipfile.ZipFile(archive, "a") as stored:
        for number in range(20):
            copy = zipfile.ZipInfo(f"other/{number}")
            for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(copy, name, getattr(big, name))
            stored.filelist.append(copy)
            stored.NameToInfo[copy.filename] = copy
            stored._didModify = True
    with pytest.raises(ValueError, match="its files share their bytes"):
        load(archive)
    assert not copies(cache)


def _all(data, part):
    place = data.find(part)
    while place >= 0:
        yield place
        place = data.find(part, place + 1)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_archive(archive, cache, share):
    data = archive.read_bytes()
    archive.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=f"{archive} is damaged, cut off"):
        load(archive)
    assert not copies(cache)


def test_an_encrypted_archive(archive, cache):
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        for place in _all(data, signature):
            data[place + offset] |= 1
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read: .*encrypted"):
        load(archive)
    assert not copies(cache)


def test_flipped_bits_are_noticed_or_harmless(archive, cache, masked_lm, rng):
    good = archive.read_bytes()
    noticed = 0
    for position in rng.integers(len(good), size=40):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.integers(8)
        archive.write_bytes(bad)
        shutil.rmtree(cache, ignore_errors=True)
        try:
            model = load(archive)
        except (ValueError, OSError) as error:
            assert archive.name in str(error)
            noticed += 1
        else:
            assert_same_model(model, masked_lm)
    assert noticed > 20


def test_a_full_disk_leaves_nothing(archive, cache, monkeypatch):
    usage = shutil.disk_usage(archive.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match="The disk is full"):
        load(archive)
    assert not copies(cache)
