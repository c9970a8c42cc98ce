"""Raw text files to shards: files of documents that TensorFlow reads in a graph."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import tensorflow as tf

from roformer_tf.checks import check_number, check_positive_integer
from roformer_tf.files import (
    NO_SPACE,
    check_not_a_file,
    lock_folder,
    remove_temporary,
    replace_files,
)
from roformer_tf.pretraining.text_files import TextFileReader, list_text_files, split_suffixes

CORPUS_FORMAT = 2  # raise it when the shards change, so that caches of older ones are not used
MANIFEST = "corpus.json"
# Small: a window is a random choice of shards, and the more of them it holds, the better it mixes.
MIN_SHARD_BYTES = 2**15
MAX_SHARDS = 16000
EXPANSION = {"": 1, ".gz": 3, ".xz": 4}  # rough: bytes of Chinese text per byte on disk
BYTES_WORTH_A_BAR = 2**25


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The documents of a pretraining run, split into shards. Returned by `prepare_corpus`.

    Attributes:
        shards: list of str. Paths of the shards of training documents; see `read_shard`.
        held_out_shards: list of str. Paths of the shards of held-out documents; may be empty.
        num_documents, num_characters: int. Size of the training part.
        num_held_out: int. Number of documents held out.
        skipped: dict. Number of `bad_lines` and `empty_documents`.
        first_bad_lines: list of str, `file:line: reason`.
        fingerprint: str. Hash of all documents, their order and their shards.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.pretraining import prepare_corpus
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.jsonl"), "w") as file:
    ...     _ = file.write('{"text": "one"}{"text": " "}'.replace("}{", "}" + os.linesep + "{"))
    >>> corpus = prepare_corpus(os.path.join(folder, "*.jsonl"), os.path.join(folder, "cache"))
    >>> corpus.num_documents, corpus.num_characters, corpus.skipped
    (1, 3, {'bad_lines': 0, 'empty_documents': 1})
    """

    shards: list
    held_out_shards: list
    num_documents: int
    num_characters: int
    num_held_out: int
    skipped: dict
    first_bad_lines: list
    fingerprint: str


def prepare_corpus(
    files,
    folder,
    held_out=0.0,
    shard_bytes=None,
    txt_documents="blocks",
    max_bad_lines=None,
    reader=None,
):
    r"""Writes the documents of raw text files to shards, or finds the shards of an earlier call.

    Files are `.jsonl`, with one object with a string `text` per line (other fields are ignored), or
    `.txt`, with one document per block of lines or per line. Both may be compressed as `.gz` or
    `.xz`. Files are read in the order of their paths, however they were named.

    The corpus is a subfolder of `folder` that appears at once, complete. After an error or a kill
    there is none, and everything else in `folder` is unchanged. A later call finds the corpus as
    long as the arguments and the paths, sizes and times of the files are the same. Other files or
    arguments get another subfolder; old ones are never deleted, since a run may still read them. If
    two processes ask for the same corpus, one waits for the other.

    Irregular input:

    * A line is skipped and counted if it is not UTF-8, is not JSON, has no string `text`, or is
      longer than 64 MiB. In `"blocks"` the other lines of the block remain. See `max_bad_lines`.
    * A document of white space only is skipped and counted.
    * A file that cannot be read, or a compressed file that is damaged or cut off, is an error that
      names the file and the last line reached. None of its documents are used.
    * In `"blocks"` a block of more than four million characters is split between two lines.

    Args:
        files: str or list of str. Paths or glob patterns.
        folder: str or path-like. The cache. Created if it does not exist.
        held_out: float in [0, 1]. Share of documents to hold out from training. A hash of its text
            decides for each document, so equal documents are always on the same side.
        shard_bytes: int. Bytes of text per shard. `None` stands for 32 KiB, or more if there would
            be more than about 16,000 shards.
        txt_documents: str. `"blocks"`: blank lines separate the documents of a .txt file;
            `"lines"`: each line is a document.
        max_bad_lines: int. Number of bad lines to tolerate in all files together. `None` stands for
            100, or 1 % of the lines read so far if that is more.
        reader: a `TextFileReader` to use instead of one made of `txt_documents` and
            `max_bad_lines`.

    Returns:
        `Corpus`.

    Raises:
        FileNotFoundError: If a pattern matches no file.
        ValueError: If an argument is invalid, a file is damaged, there are too many bad lines, or
            there is no document.
        NotADirectoryError: If `folder` is a file.
        OSError: If a file cannot be read or the disk is full.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.pretraining import prepare_corpus
    >>> from roformer_tf.pretraining.corpus import read_shard
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
    ...     _ = file.write("春眠不觉晓\n处处闻啼鸟\n\n夜来风雨声\n")
    >>> corpus = prepare_corpus(os.path.join(folder, "*.txt"), os.path.join(folder, "cache"))
    >>> [document.decode() for document in read_shard(corpus.shards[0]).numpy()]
    ['春眠不觉晓\n处处闻啼鸟', '夜来风雨声']
    """
    reader = reader or TextFileReader(txt_documents, max_bad_lines)
    paths = list_text_files(files, reader.forms)
    check_number("held_out", held_out, 0.0, 1.0)
    text_bytes = sum(
        EXPANSION[split_suffixes(path, reader.forms)[1]] * os.path.getsize(path) for path in paths
    )
    if shard_bytes is None:
        shard_bytes = max(MIN_SHARD_BYTES, text_bytes // MAX_SHARDS)
    check_positive_integer("shard_bytes", shard_bytes)
    stats = [(path, os.stat(path)) for path in paths]
    key = {
        "format": CORPUS_FORMAT,
        "files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats],
        "held_out": float(held_out),
        "shard_bytes": shard_bytes,
        **reader.settings,
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    parent = Path(folder).absolute() / digest[:16]
    target = parent / "corpus"
    check_not_a_file(parent)
    corpus = _load(target)
    if corpus is not None:
        return corpus
    try:
        with lock_folder(parent, wait=True) as locked:
            if locked:  # nobody else writes
                remove_temporary(parent)
            corpus = _load(target)  # another process may just have written it
            return corpus or _prepare(paths, target, key, reader)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)}: the corpus does not fit into {folder}. It needs very "
            f"roughly {text_bytes / 1e9:.1g} GB. Make room or name another folder. Nothing was "
            "left there, and everything that was there before is unchanged.",
        ) from error


def read_shard(name):
    """Reads the documents of a shard in a graph: strings `(documents,)`, UTF-8."""
    with tf.device("CPU"):
        documents = tf.io.parse_tensor(tf.io.read_file(name), tf.string)
        return tf.ensure_shape(documents, [None])


def _prepare(paths, target, key, reader):
    """Writes the corpus to the folder `target` and returns it."""
    if target.exists():
        shutil.rmtree(target)  # damaged, or `_load` would have taken it
    try:
        with replace_files(target, exist_ok=False) as folder:
            manifest = _write(paths, folder, key, reader)
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    except FileExistsError:  # without locks another process may have come first
        pass
    return _load(target)


def _write(paths, folder, key, reader):
    """Writes the shards and returns the manifest."""
    training = _ShardWriter(folder, "shard", key["shard_bytes"])
    held_out = _ShardWriter(folder, "held-out", key["shard_bytes"])
    sizes = [os.path.getsize(path) for path in paths]
    with _progress_bar(sum(sizes)) as show:
        for number, path in enumerate(paths):
            before = sum(sizes[:number])
            for document in reader.documents(path):
                digest = hashlib.sha256(document).digest()
                out = int.from_bytes(digest[:8], "big") < key["held_out"] * 2**64
                (held_out if out else training).add(document, digest)
                show(before + reader.position)
    training.flush()
    held_out.flush()
    if not training.num_documents:
        raise ValueError(
            f"There is no document to train on in {len(paths)} files, the first of them "
            f"{paths[0]}: {reader.lines} lines, {held_out.num_documents} documents held out, "
            f"{reader.empty_documents} empty, {reader.bad_lines} bad lines."
            + "".join("\n  " + bad for bad in reader.first_bad_lines)
        )
    fingerprint = hashlib.sha256(training.hash.digest() + held_out.hash.digest())
    return {
        **key,
        "shards": training.shards,
        "held_out_shards": held_out.shards,
        "num_documents": training.num_documents,
        "num_characters": training.num_characters,
        "num_held_out": held_out.num_documents,
        "skipped": {"bad_lines": reader.bad_lines, "empty_documents": reader.empty_documents},
        "first_bad_lines": reader.first_bad_lines,
        "fingerprint": fingerprint.hexdigest(),
    }


def _load(folder):
    """Returns the corpus of a folder, or `None` if it is missing or incomplete."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        paths = {}
        for kind in ("shards", "held_out_shards"):
            if any(os.path.getsize(folder / name) != size for name, size in manifest[kind]):
                return None
            paths[kind] = [str(folder / name) for name, _ in manifest[kind]]
        fields = (field.name for field in dataclasses.fields(Corpus))
        return Corpus(**{name: paths.get(name, manifest[name]) for name in fields})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


class _ShardWriter:
    """Collects documents and writes a shard for every `shard_bytes` of them."""

    def __init__(self, folder, kind, shard_bytes):
        self.folder, self.kind, self.shard_bytes = folder, kind, shard_bytes
        self.shards = []  # [name, size]
        self.num_documents = self.num_characters = 0
        self.hash = hashlib.sha256()
        self._documents, self._size = [], 0

    def add(self, document, digest):
        self._documents.append(document)
        self._size += len(document)
        self.num_documents += 1
        self.num_characters += len(document.decode())
        self.hash.update(digest)
        if self._size >= self.shard_bytes:
            self.flush()

    def flush(self):
        if not self._documents:
            return
        name = f"{self.kind}-{len(self.shards):05}"
        # like tf.io.serialize_tensor, which would start TensorFlow's devices
        proto = tf.make_tensor_proto(self._documents, tf.string, [len(self._documents)])
        data = proto.SerializeToString()
        (self.folder / name).write_bytes(data)
        self.shards.append([name, len(data)])
        self.hash.update(b"chunk")  # marks the end of a shard; fingerprints have always had it
        self._documents, self._size = [], 0


@contextlib.contextmanager
def _progress_bar(total):
    """Yields a function that moves a bar to a number of bytes."""
    if total < BYTES_WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda position: None
        return
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task("Reading texts", total=total)
        yield lambda position: bar.update(task, completed=position)
