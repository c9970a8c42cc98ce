"""Files and folders are written completely or not at all."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from roformer_tf import files
from roformer_tf.files import replace_file, replace_files


def files_of(folder):
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


def test_a_new_folder_appears_complete(tmp_path):
    folder = tmp_path / "deep" / "new"
    with replace_files(folder) as temporary:
        (temporary / "a").write_text("1")
        assert not folder.exists()
    assert files_of(folder) == {"a": "1"}
    assert os.listdir(tmp_path / "deep") == ["new"]
    default = tmp_path / "default"
    default.mkdir()
    assert folder.stat().st_mode == default.stat().st_mode


@pytest.mark.parametrize("whole", [False, True])
def test_other_files_stay_unless_the_whole_folder_is_replaced(tmp_path, whole):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "README").write_text("mine")
    with replace_files(folder, whole) as temporary:
        (temporary / "a").write_text("new")
        (temporary / "b").write_text("new")
        assert (folder / "a").read_text() == "old"
    others = {} if whole else {"README": "mine"}
    assert files_of(folder) == {"a": "new", "b": "new", **others}
    assert len(os.listdir(folder)) == 2 + len(others) and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_while_writing_changes_nothing(tmp_path, exists, whole):
    folder = tmp_path / "model"
    if exists:
        folder.mkdir()
        (folder / "a").write_text("old")
    with pytest.raises(OSError, match="disk full"), replace_files(folder, whole) as temporary:
        (temporary / "a").write_text("new")
        raise OSError("disk full")
    assert os.listdir(tmp_path) == (["model"] if exists else [])
    assert not exists or os.listdir(folder) == ["a"]
    assert not exists or files_of(folder) == {"a": "old"}


@pytest.mark.parametrize(
    "failing, whole", [*((n, False) for n in range(7)), *((n, True) for n in range(3))]
)
def test_a_failure_while_replacing_restores_all(tmp_path, monkeypatch, failing, whole):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text("old")
    calls, rename = [], os.rename

    def fail_once(source, target):
        calls.append(source)
        if len(calls) == failing + 1:
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(files, "RENAME_EXCHANGE", None)  # as on other systems
    with pytest.raises(OSError, match="no"), replace_files(folder, whole) as temporary:
        for name in "abc":
            (temporary / name).write_text("new")
        monkeypatch.setattr(os, "rename", fail_once)
    assert files_of(folder) == {"a": "old", "b": "old"}
    assert sorted(os.listdir(folder)) == ["a", "b"] and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("whole", [False, True])
def test_several_writers_at_once_leave_one_version_complete(tmp_path, whole):
    folder = tmp_path / "model"
    folder.mkdir()

    def write(number):
        for _ in range(50):
            with replace_files(folder, whole) as temporary:
                (temporary / "a").write_text(str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert list(files_of(folder)) == ["a"] and os.listdir(folder) == ["a"]
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(NotADirectoryError, match="file is a file"), replace_files(folder):
            pass


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), replace_file(path) as file:
        file.write(b"new")
        raise OSError("disk full")
    with pytest.raises(OSError, match="The disk is full.*numbers could not"), replace_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert files_of(tmp_path) == {"numbers": "old"} and os.listdir(tmp_path) == ["numbers"]
    mode = path.stat().st_mode
    with replace_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert files_of(tmp_path) == {"numbers": "new"} and os.listdir(tmp_path) == ["numbers"]
    assert path.stat().st_mode == mode  # that of `open`


@pytest.mark.skipif(os.name == "nt", reason="needs links and pipes")
def test_a_link_and_a_pipe_stay(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("old")
    link.symlink_to(target)
    with replace_file(link) as file:
        file.write(b"new")
    assert link.is_symlink() and target.read_text() == "new"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(pipe.read_bytes)
        with replace_file(pipe) as file:
            file.write(b"new")
        assert found.result() == b"new" and pipe.is_fifo()
    reading, writing = os.pipe()
    with replace_file(f"/dev/fd/{writing}") as file:  # as /dev/stdout
        file.write(b"new")
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read() == b"new"


def test_several_writers_of_one_file_leave_one_version(tmp_path):
    path = tmp_path / "numbers"

    def write(number):
        for _ in range(50):
            with replace_file(path) as file:
                file.write(str(number).encode())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert path.read_text() in "01234567" and os.listdir(tmp_path) == ["numbers"]
