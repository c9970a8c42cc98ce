"""Files and folders are written whole or not at all."""

import os

import pytest

from roformer_tf.files import replace_files


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_a_new_folder_appears_complete(tmp_path):
    with replace_files(tmp_path / "deep" / "new") as temporary:
        (temporary / "a").write_text("1")
        assert not (tmp_path / "deep" / "new").exists()
    assert files_of(tmp_path / "deep" / "new") == {"a": b"1"}
    assert os.listdir(tmp_path / "deep") == ["new"]
    default = tmp_path / "default"
    default.mkdir()
    assert (tmp_path / "deep" / "new").stat().st_mode == default.stat().st_mode


def test_other_files_stay(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "README").write_text("mine")
    with replace_files(tmp_path) as temporary:
        (temporary / "a").write_text("new")
        (temporary / "b").write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    assert files_of(tmp_path) == {"a": b"new", "b": b"new", "README": b"mine"}
    assert sorted(os.listdir(tmp_path)) == ["README", "a", "b"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_while_writing_leaves_all_as_it_was(tmp_path, exists):
    folder = tmp_path / "model"
    if exists:
        folder.mkdir()
        (folder / "a").write_text("old")
    with pytest.raises(OSError, match="disk full"), replace_files(folder) as temporary:
        (temporary / "a").write_text("new")
        raise OSError("disk full")
    assert os.listdir(tmp_path) == (["model"] if exists else [])
    assert not exists or os.listdir(folder) == ["a"]
    assert not exists or files_of(folder) == {"a": b"old"}


@pytest.mark.parametrize("failing", range(4))
def test_a_failure_while_replacing_puts_all_back(tmp_path, monkeypatch, failing):
    for name in "ab":
        (tmp_path / name).write_text("old")
    calls, replace = [], os.replace

    def fail_once(source, target):
        calls.append(source)
        if len(calls) == failing + 1:
            raise OSError("no")
        replace(source, target)

    with pytest.raises(OSError, match="no"), replace_files(tmp_path) as temporary:
        for name in "abc":
            (temporary / name).write_text("new")
        monkeypatch.setattr(os, "replace", fail_once)
    assert files_of(tmp_path) == {"a": b"old", "b": b"old"}
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file"), replace_files(tmp_path / "file"):
        pass
