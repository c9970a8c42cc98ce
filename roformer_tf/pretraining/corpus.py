"""Raw text files to chunk files, which TensorFlow reads on its own."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import tensorflow as tf

from roformer_tf.checks import check_number, check_positive_integer
from roformer_tf.files import replace_files
from roformer_tf.pretraining.text_files import TextFileReader, form_of, list_text_files

try:
    import fcntl
except ImportError:  # Windows: two processes at once then both do the work
    fcntl = None

CORPUS_FORMAT = 1  # raise it when the chunk files change: older ones are then made anew
MANIFEST = "corpus.json"
# Small, as a window is a random choice of chunk files: the more of them it holds, the better it mixes the texts.
MIN_CHUNK_BYTES = 2**15
MAX_CHUNKS = 16000
EXPANSION = {"": 1, ".gz": 3, ".xz": 4}  # rough: bytes of Chinese text for one on disk
BYTES_WORTH_A_BAR = 2**25
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The documents of a pretraining run, in chunk files: what `prepare_corpus` returns.

    Attributes:
        chunks: list of str, paths of the chunk files of training documents; see `read_chunk`.
        held_out_chunks: list of str, those of the documents that are held out; may be empty.
        num_documents, num_characters: int, of training documents.
        num_held_out: int, documents held out.
        skipped: dict, how many `bad_lines` and `empty_documents` there were.
        first_bad_lines: list of str, `file:line: reason`.
        fingerprint: str, a hash of all documents, their order and their chunks.

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

    chunks: list
    held_out_chunks: list
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
    chunk_bytes=None,
    txt_documents="blocks",
    max_bad_lines=None,
):
    r"""Reads raw text files once and writes their documents to chunk files, or finds them written.

    Files are `.jsonl`, one object with a string `text` on each line, other fields ignored; or `.txt`
    with a document per block of lines or per line.  Both may be compressed, `.gz` or `.xz`.  They
    are read in the order of their paths, so the corpus does not depend on how they were named.

    The corpus appears in a subfolder of `folder` at once, when it is complete: an error or a killed
    process leaves none, and whatever was there before stays as it was.  The next call finds it as
    long as paths, sizes and times of the files and the arguments are the same; of other files or
    arguments another subfolder is made, and old ones stay until someone deletes them, since a run
    may still read them.  Of two processes that ask at once, one waits for the other.

    What is odd in the files:

    * A line that is not UTF-8, not JSON, without a string `text`, or over 64 MiB is skipped and
      counted; in `"blocks"` the other lines of the block remain.  See `max_bad_lines`.
    * A document without anything but white space is skipped and counted.
    * A compressed file that is damaged or cut off, or a file that cannot be read, is an error that
      names the file and the last line reached; no document of it is used.
    * In `"blocks"` a block of more than four million characters is divided between two lines.

    Args:
        files: str or list of str, paths or glob patterns.
        folder: str or path-like. The cache; made when it is not there.
        held_out: float from 0 to 1, the share of documents that are not trained on.  A hash of its
            text decides for each document, so equal ones are on the same side, always.
        chunk_bytes: int, text in a chunk file. None: 32 KiB, and more for files so large that
            there would be more than about 16,000 chunks.
        txt_documents: `"blocks"`: blank lines separate the documents of a .txt file;
            `"lines"`: each line is one.
        max_bad_lines: int, how many bad lines of all files are borne.  None: 100, and 1 % of the
            lines read so far when that is more.

    Returns:
        Corpus.

    Raises:
        FileNotFoundError: a pattern that matches no file.
        ValueError: an argument that cannot be; a damaged file; too many bad lines; no document.
        OSError: a file cannot be read, or the disk is full.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.pretraining import prepare_corpus
    >>> from roformer_tf.pretraining.corpus import read_chunk
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
    ...     _ = file.write("春眠不觉晓\n处处闻啼鸟\n\n夜来风雨声\n")
    >>> corpus = prepare_corpus(os.path.join(folder, "*.txt"), os.path.join(folder, "cache"))
    >>> [document.decode() for document in read_chunk(corpus.chunks[0]).numpy()]
    ['春眠不觉晓\n处处闻啼鸟', '夜来风雨声']
    """
    paths = list_text_files(files)
    check_number("held_out", held_out, 0.0, 1.0)
    if chunk_bytes is None:
        sizes = (EXPANSION[form_of(path)[1]] * os.path.getsize(path) for path in paths)
        chunk_bytes = max(MIN_CHUNK_BYTES, sum(sizes) // MAX_CHUNKS)
    check_positive_integer("chunk_bytes", chunk_bytes)
    reader = TextFileReader(txt_documents, max_bad_lines)
    key = {
        "format": CORPUS_FORMAT,
        "files": [_identity(path) for path in paths],
        "held_out": float(held_out),
        "chunk_bytes": chunk_bytes,
        "txt_documents": txt_documents,
        "max_bad_lines": max_bad_lines,
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    place = Path(folder).absolute() / digest[:16]
    corpus = _load(place / "corpus")
    if corpus is not None:
        return corpus
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            corpus = _load(place / "corpus")  # another process may just have made it
            return corpus or _prepare(paths, place / "corpus", key, reader)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        size = sum(EXPANSION[form_of(path)[1]] * os.path.getsize(path) for path in paths)
        raise OSError(
            error.errno,
            f"{error.strerror}: the corpus does not fit into {folder}; it needs very roughly {size / 1e9:.1g} GB. "
            "Make room or name another folder. Nothing of it was left there, and what was there before is as it was.",
        ) from error


def read_chunk(name):
    """The documents of a chunk file, in a graph.

    Args:
        name: scalar string tensor, a path.

    Returns:
        String tensor (documents,), UTF-8.
    """
    with tf.device("CPU"):
        documents = tf.io.parse_tensor(tf.io.read_file(name), tf.string)
        return tf.ensure_shape(documents, [None])


def _prepare(paths, target, key, reader):
    """Makes the folder `target`."""
    if target.exists():
        shutil.rmtree(target)  # damaged, or `_load` would have taken it
    try:
        with replace_files(target) as folder:
            manifest = _write(paths, folder, key, reader)
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    except OSError as error:
        # without the lock another process can have come first
        corpus = _load(target) if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else None
        if corpus is None:
            raise
    return _load(target)


def _write(paths, folder, key, reader):
    """Writes the chunk files; returns the manifest."""
    training = _ChunkWriter(folder, "chunk", key["chunk_bytes"])
    held_out = _ChunkWriter(folder, "held-out", key["chunk_bytes"])
    with _progress_bar(paths) as advance:
        for path in paths:
            for document in reader.documents(path):
                digest = hashlib.sha256(document).digest()
                out = int.from_bytes(digest[:8], "big") < key["held_out"] * 2**64
                (held_out if out else training).add(document, digest)
                advance(reader.position)
            advance(0, path)
    training.flush()
    held_out.flush()
    if not training.num_documents:
        raise ValueError(
            f"There is no document to train on in {len(paths)} files, the first of them {paths[0]}: {reader.lines} "
            f"lines, {held_out.num_documents} documents held out, {reader.empty_documents} empty, "
            f"{reader.bad_lines} bad lines."
            + "".join("\n  " + bad for bad in reader.first_bad_lines)
        )
    fingerprint = hashlib.sha256(training.hash.digest() + held_out.hash.digest())
    return {
        **key,
        "chunks": training.chunks,
        "held_out_chunks": held_out.chunks,
        "num_documents": training.num_documents,
        "num_characters": training.num_characters,
        "num_held_out": held_out.num_documents,
        "skipped": {"bad_lines": reader.bad_lines, "empty_documents": reader.empty_documents},
        "first_bad_lines": reader.first_bad_lines,
        "fingerprint": fingerprint.hexdigest(),
    }


def _load(folder):
    """The corpus of a folder; None when there is none, or not all of it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        names = {}
        for kind in ("chunks", "held_out_chunks"):
            for name, size in manifest[kind]:
                if os.path.getsize(folder / name) != size:
                    return None
            names[kind] = [str(folder / name) for name, _ in manifest[kind]]
        fields = (field.name for field in dataclasses.fields(Corpus))
        return Corpus(**{name: names.get(name, manifest[name]) for name in fields})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _identity(path):
    stat = os.stat(path)
    return [path, stat.st_size, stat.st_mtime_ns]


class _ChunkWriter:
    """Collects documents and writes a file for every `chunk_bytes` of them."""

    def __init__(self, folder, kind, chunk_bytes):
        self.folder, self.kind, self.chunk_bytes = folder, kind, chunk_bytes
        self.chunks = []  # [name, size]
        self.num_documents = self.num_characters = 0
        self.hash = hashlib.sha256()
        self._documents, self._size = [], 0

    def add(self, document, digest):
        self._documents.append(document)
        self._size += len(document)
        self.num_documents += 1
        self.num_characters += len(document.decode())
        self.hash.update(digest)
        if self._size >= self.chunk_bytes:
            self.flush()

    def flush(self):
        if not self._documents:
            return
        name = f"{self.kind}-{len(self.chunks):05}"
        # as tf.io.serialize_tensor, which would start TensorFlow's devices
        proto = tf.make_tensor_proto(self._documents, tf.string, [len(self._documents)])
        data = proto.SerializeToString()
        (self.folder / name).write_bytes(data)
        self.chunks.append([name, len(data)])
        self.hash.update(b"chunk")
        self._documents, self._size = [], 0


@contextlib.contextmanager
def _alone(place):
    """Waits until no other process works at `place`, and clears away what killed ones have left."""
    if fcntl is None:
        yield
        return
    with open(place / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that prepares {place}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield
            return
        for left in place.glob(".saving-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def _progress_bar(paths):
    """A function (position in a file, path when it is read to its end), which moves a bar."""
    sizes = {path: os.path.getsize(path) for path in paths}
    total = sum(sizes.values())
    if total < BYTES_WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda position, finished=None: None
        return
    import rich.console
    import rich.progress

    columns = (
        *(rich.progress.TextColumn("reading texts"), rich.progress.BarColumn()),
        *(rich.progress.DownloadColumn(), rich.progress.TransferSpeedColumn()),
        rich.progress.TimeRemainingColumn(),
    )
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        done = shown = 0

        def advance(position, finished=None):
            nonlocal done, shown
            if finished is not None:
                done += sizes[finished]
            if done + position - shown > 2**19:
                shown = done + position
                bar.update(task, completed=shown)

        yield advance
