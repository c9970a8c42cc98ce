"""`prepare_corpus`: documents of raw files, irregular files, full disks, several processes."""

import errno
import gzip
import json
import lzma
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import files
from roformer_tf.pretraining import corpus as corpus_module
from roformer_tf.pretraining import prepare_corpus, text_files
from roformer_tf.pretraining.corpus import read_shard

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}
POEM = ["春眠不觉晓", "处处闻啼鸟", "夜来风雨声", "花落知多少"]


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    with OPENERS.get(path.suffix, open)(path, "wb") as file:
        file.write(data)
    return path


def json_lines(texts):
    return "".join(json.dumps({"title": "题", "text": t}, ensure_ascii=False) + "\n" for t in texts)


def documents(shards):
    return [d.decode() for name in shards for d in read_shard(name).numpy()]


def left_in(folder):
    """All files below a folder."""
    return [p for p in Path(folder).rglob("*") if p.is_file()]


@pytest.mark.parametrize("ending", OPENERS)
def test_documents_of_every_form(tmp_path, ending):
    blocks = "\ufeff春眠不觉晓\r\n处处闻啼鸟\r\n \u3000\r\n\r\n夜来风雨声\n\n\n\n花落知多少"
    write(tmp_path / f"a.txt{ending}", blocks)
    write(
        tmp_path / f"b.jsonl{ending}",
        json_lines(["一\n\n二 ", " \n"]) + '{"text": "\\ud83d三"}\n\n',
    )
    cache = tmp_path / "cache"
    corpus = prepare_corpus(str(tmp_path / f"*{ending or '[tl]'}"), cache)
    expected = ["春眠不觉晓\n处处闻啼鸟", *POEM[2:], "一\n\n二", "\U0010ffff三"]
    assert documents(corpus.shards) == expected
    assert corpus.num_documents == 5
    assert corpus.num_characters == sum(map(len, expected))
    assert corpus.skipped == {"bad_lines": 0, "empty_documents": 1}
    assert corpus.held_out_shards == [] and corpus.num_held_out == 0
    lines = prepare_corpus(str(tmp_path / f"a.txt{ending}"), cache, txt_documents="lines")
    assert documents(lines.shards) == POEM
    assert lines.skipped["empty_documents"] == 5


def test_fingerprints_depend_on_shards_and_texts_but_not_on_compression(tmp_path):
    prints = []
    for number, ending in enumerate(OPENERS):
        file = write(tmp_path / str(number) / f"a.txt{ending}", "\n\n".join(POEM))
        prints.append(prepare_corpus(str(file), tmp_path / "cache").fingerprint)
    assert len(set(prints)) == 1
    others = [
        prepare_corpus(str(file), tmp_path / "cache", shard_bytes=1),
        prepare_corpus(str(file), tmp_path / "cache", held_out=0.5),
        prepare_corpus(str(write(tmp_path / "b.txt", "\n\n".join(POEM[::-1]))), tmp_path / "cache"),
    ]
    assert len({corpus.fingerprint for corpus in others} | set(prints)) == 4


def test_files_are_sorted_and_read_once_however_they_are_named(tmp_path):
    for name, text in zip(["c[1].txt", "b.txt", "a.txt", "d/a.txt"], POEM, strict=True):
        write(tmp_path / name, text)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    top, cache = str(tmp_path), tmp_path / "cache"
    corpus = prepare_corpus([f"{top}/c[1].txt", f"{top}/*.txt", f"{top}/**/*.txt"], cache)
    assert documents(corpus.shards) == [POEM[2], POEM[1], POEM[0], POEM[3]]
    assert prepare_corpus(f"{top}/**/*.txt", cache) == corpus
    with pytest.raises(FileNotFoundError, match=r"No file matches '.*nothing\*.txt'"):
        prepare_corpus([f"{top}/*.txt", f"{top}/nothing*.txt"], cache)
    with pytest.raises(ValueError, match="is a folder. Name its files"):
        prepare_corpus(top, cache)
    with pytest.raises(ValueError, match=r"Expected text files .* Received: .*\.csv'"):
        prepare_corpus(str(write(tmp_path / "a.csv", "a")), cache)
    with pytest.raises(ValueError, match="at least one file"):
        prepare_corpus([], cache)


def test_held_out_documents_depend_on_their_text_only(tmp_path, rng):
    texts = [f"{number} 春眠" for number in rng.permutation(3000)]
    corpora = []
    for order in (texts, texts[::-1] + texts[:500]):
        file = write(tmp_path / "a.jsonl", json_lines(order))
        corpora.append(prepare_corpus(str(file), tmp_path / "cache", held_out=0.1))
        held_out, training = (
            documents(c) for c in (corpora[-1].held_out_shards, corpora[-1].shards)
        )
        assert sorted(held_out + training) == sorted(order)
        assert not set(held_out) & set(training)
        assert corpora[-1].num_held_out == len(held_out)
        assert [t for t in order if t in set(training)] == training
        if order is texts:
            first = set(held_out)
    assert first == set(held_out)
    assert abs(len(first) - 300) < 5 * np.sqrt(3000 * 0.1 * 0.9)
    with pytest.raises(ValueError, match="no document to train on.* 3500 documents held out"):
        prepare_corpus(str(file), tmp_path / "cache", held_out=1.0)


def test_shards(tmp_path):
    texts = ["字" * 100] * 10 + ["长" * 5000] + ["尾"]
    file = write(tmp_path / "a.jsonl", json_lines(texts))
    corpus = prepare_corpus(str(file), tmp_path / "cache", shard_bytes=1000)
    sizes = [read_shard(name).shape[0] for name in corpus.shards]
    assert sizes == [4, 4, 3, 1]
    assert documents(corpus.shards) == texts
    # in a graph, as the input reads them
    data = tf.data.Dataset.from_tensor_slices(corpus.shards).map(read_shard)
    assert data.element_spec == tf.TensorSpec([None], tf.string)
    assert [d.decode() for chunk in data for d in chunk.numpy()] == texts


def test_number_of_shards_of_large_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "MAX_SHARDS", 10)
    monkeypatch.setattr(corpus_module, "MIN_SHARD_BYTES", 100)
    file = write(tmp_path / "a.jsonl", json_lines(["字" * 10] * 1000))
    assert 5 <= len(prepare_corpus(str(file), tmp_path / "cache").shards) <= 10


def test_a_large_document(tmp_path):
    text = "春眠不觉晓，\n处处闻啼鸟。\n" * 140_000
    write(tmp_path / "a.jsonl.xz", json_lines([text]))
    write(tmp_path / "b.txt", text)
    corpus = prepare_corpus(str(tmp_path / "*.*"), tmp_path / "cache")
    assert len(text.encode()) > 5_000_000
    assert documents(corpus.shards) == [text.strip()] * 2


def test_huge_blocks_are_split_and_huge_lines_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_BLOCK_BYTES", 4 * 11)
    file = write(tmp_path / "a.txt", "\n".join(POEM) + "\n\n一")
    corpus = prepare_corpus(str(file), tmp_path / "cache")
    assert documents(corpus.shards) == ["\n".join(POEM[:3]), POEM[3], "一"]

    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 2**20)
    long = "长" * 1_000_000
    file = write(tmp_path / "b.txt", f"一\n{long}\n{long[: 2**20 // 3]}\n三{long}")
    corpus = prepare_corpus(str(file), tmp_path / "cache", txt_documents="lines")
    assert documents(corpus.shards) == ["一", long[: 2**20 // 3]]
    assert corpus.skipped["bad_lines"] == 2
    assert [line.split(": ")[0] for line in corpus.first_bad_lines] == [f"{file}:2", f"{file}:4"]


BAD = {
    b'{"text": "\xe6\x98"}': "not UTF-8 (byte 0xe6 at position 10)",
    b'{"text": "one"': "not JSON (",
    b'{"text": 3}': "not an object with a string `text`",
    b'["text"]': "not an object with a string `text`",
    b'{"title": "x"}': "not an object with a string `text`",
    b"[" * 100_000: "not JSON (",
    b"\0": "not JSON (",
}


def test_bad_lines_are_skipped_and_counted(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"".join(b'{"text": "good"}\n' + bad + b"\n" for bad in BAD))
    text = write(tmp_path / "b.txt", b"good\n\xff\ngood\n\ngood")
    corpus = prepare_corpus(str(tmp_path / "*.*"), tmp_path / "cache")
    assert documents(corpus.shards) == ["good"] * len(BAD) + ["good\ngood", "good"]
    assert corpus.skipped == {"bad_lines": len(BAD) + 1, "empty_documents": 0}
    expected = [f"{file}:{2 * n}: {reason}" for n, reason in enumerate(BAD.values(), 1)]
    expected.append(f"{text}:2: not UTF-8 (byte 0xff at position 0)")
    for line, start in zip(corpus.first_bad_lines, expected, strict=True):
        assert line.startswith(start)
    with pytest.raises(ValueError, match=rf"a.jsonl, line 8: .*\n.*{file}:2: not UTF-8"):
        prepare_corpus(str(file), tmp_path / "cache", max_bad_lines=3)
    assert prepare_corpus(str(file), tmp_path / "cache", max_bad_lines=7).num_documents == 7


def test_many_bad_lines_are_an_error_unless_there_are_many_lines(tmp_path):
    file = write(tmp_path / "a.jsonl", "x\n" * 101)
    with pytest.raises(ValueError, match="a.jsonl, line 101: .*101 of 101 lines are bad"):
        prepare_corpus(str(file), tmp_path / "cache")
    file = write(tmp_path / "b.jsonl", json_lines(["a"] * 15_000) + "x\n" * 101)
    assert prepare_corpus(str(file), tmp_path / "cache").skipped["bad_lines"] == 101
    # of another encoding
    file = write(tmp_path / "c.txt", "\n".join(POEM).encode("gbk"))
    with pytest.raises(ValueError, match="no document to train on.*4 bad lines(.|\n)*c.txt:1: no"):
        prepare_corpus(str(file), tmp_path / "cache")
    file = write(tmp_path / "d.txt", "\n".join(POEM).encode("utf-16"))
    with pytest.raises(ValueError, match="d.txt, line 1: the file is UTF-16. Convert it"):
        prepare_corpus(str(file), tmp_path / "cache")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_files_are_an_error_that_names_file_and_line(tmp_path, ending, rng):
    whole = write(tmp_path / f"a.jsonl{ending}", json_lines(rng.random(4000).astype(str)))
    data = whole.read_bytes()
    middle = len(data) // 2
    damaged = {
        "cut off": data[:middle],
        "without its end": data[:-1],
        "changed": data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        "empty": b"",
        "another format": b"no gzip" * 100,
    }
    for what, content in damaged.items():
        file = tmp_path / f"b.jsonl{ending}"
        file.write_bytes(content)
        # a changed byte may show as a corrupt line before the checksum tells
        pattern = rf"b.jsonl{ending}, after line \d+: the compressed file is damaged or cut off \("
        with pytest.raises(ValueError, match=pattern):
            prepare_corpus([str(whole), str(file)], tmp_path / what, max_bad_lines=10**9)
        assert left_in(tmp_path / what) == []


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    file = write(tmp_path / "a.jsonl", json_lines(POEM))

    def failing(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(text_files, "open_compressed", failing)
    with pytest.raises(OSError, match="a.jsonl, after line 0: cannot be read: Input/output error"):
        prepare_corpus(str(file), tmp_path / "cache")
    monkeypatch.undo()

    documents_of_it = text_files.TextFileReader().documents(str(file))
    next(documents_of_it)
    with open(file, "a") as more:
        more.write("\n")
    with pytest.raises(ValueError, match="a.jsonl changed while it was read"):
        list(documents_of_it)


def test_the_corpus_is_found_again_until_a_file_changes(tmp_path, calls_of):
    file = write(tmp_path / "a.jsonl", json_lines(POEM))
    cache = tmp_path / "cache"
    corpus = prepare_corpus(str(file), cache)
    made = calls_of(corpus_module, "_write")
    assert prepare_corpus(str(file), cache) == corpus and not made
    # a damaged corpus is made again, in the same place
    Path(corpus.shards[0]).write_bytes(b"")
    assert prepare_corpus(str(file), cache) == corpus and len(made) == 1
    assert documents(corpus.shards) == POEM
    os.unlink(corpus.shards[0])
    assert prepare_corpus(str(file), cache) == corpus and len(made) == 2
    # other files get another corpus; the old one stays for whoever reads it
    write(file, json_lines(POEM[::-1]))
    assert documents(prepare_corpus(str(file), cache).shards) == POEM[::-1] and len(made) == 3
    assert documents(corpus.shards) == POEM


@pytest.fixture
def no_large_files():
    """Writing fails after 20 kB, less than a shard, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_behind(tmp_path, request):
    small = write(tmp_path / "a.jsonl", json_lines(POEM))
    large = write(tmp_path / "b.jsonl", json_lines([f"{n} 春眠" for n in range(25_000)]))
    cache = tmp_path / "cache"
    corpus = prepare_corpus(str(small), cache)
    before = sorted(left_in(cache))
    request.getfixturevalue("no_large_files")
    with pytest.raises(OSError, match=r"does not fit into .*cache. It needs very roughly 0.001 GB"):
        prepare_corpus([str(small), str(large)], cache)
    assert sorted(left_in(cache)) == before
    assert prepare_corpus(str(small), cache) == corpus
    assert documents(corpus.shards) == POEM


def test_no_space_left(tmp_path, monkeypatch):
    file = write(tmp_path / "a.jsonl", json_lines(POEM))
    write_bytes, calls = Path.write_bytes, []

    def full(path, data):
        calls.append(path)
        if len(calls) == 3:
            write_bytes(path, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device: the corpus does not fit") as caught:
        prepare_corpus(str(file), tmp_path / "cache", shard_bytes=1)
    assert caught.value.errno == errno.ENOSPC
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize("locks", [True, False])
def test_several_at_once(tmp_path, monkeypatch, locks):
    file = write(tmp_path / "a.jsonl", json_lines([f"{n} 春眠" for n in range(5000)]))
    together = threading.Barrier(4)
    started = []
    write_it = corpus_module._write

    def counted(*arguments):
        started.append(1)
        if not locks:
            together.wait(20)  # all four write before the first is ready
        return write_it(*arguments)

    monkeypatch.setattr(corpus_module, "_write", counted)
    if not locks:
        monkeypatch.setattr(files, "fcntl", None)
    results = [None] * 4

    def ask(number):
        if locks:
            together.wait(20)
        results[number] = prepare_corpus(str(file), tmp_path / "cache", shard_bytes=2000)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == (1 if locks else 4)
    assert results[0] is not None and all(result == results[0] for result in results)
    assert len(documents(results[0].shards)) == 5000
    assert {p.name for p in left_in(tmp_path / "cache")} == {
        "corpus.json",
        *(Path(name).name for name in results[0].shards),
    }


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    file = write(tmp_path / "a.jsonl", json_lines(POEM))
    cache = tmp_path / "cache"
    corpus = prepare_corpus(str(file), cache)
    place = Path(corpus.shards[0]).parent
    place.rename(place.parent / ".saving-abc")
    assert prepare_corpus(str(file), cache) == corpus
    assert sorted(p.name for p in place.parent.iterdir()) == ["corpus"]


def test_invalid_arguments(tmp_path):
    file = str(write(tmp_path / "a.txt", "a"))
    for name, value in {
        "held_out": 1.5,
        "shard_bytes": 0,
        "txt_documents": "words",
        "max_bad_lines": -1,
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must be .*Received"):
            prepare_corpus(file, tmp_path / "cache", **{name: value})
