"""Reads the documents of raw text files, plain or compressed."""

import codecs
import glob
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterable

from roformer_tf.checks import check_number, check_one_of
from roformer_tf.files import COMPRESSED, open_compressed
from roformer_tf.text.strings import encode_utf8

FORMS = (".txt", ".jsonl")
# Both bound the memory: a longer line is a bad line, a longer block of lines is split.
MAX_LINE_BYTES = 2**26
MAX_BLOCK_BYTES = 2**24
# More bad lines than this are an error if they are also more than this share of all lines.
TOLERATED_LINES, TOLERATED_SHARE = 100, 0.01
KEPT_REASONS = 20


def checked_files(files):
    """Returns `files`, a path or pattern or a list of them, as a tuple of str.

    Raises:
        ValueError: If there is none, or one is neither a string nor path-like.
    """
    is_one = isinstance(files, str | os.PathLike) or not isinstance(files, Iterable)
    names = (files,) if is_one else tuple(files)
    if not names or not all(isinstance(name, str | os.PathLike) for name in names):
        raise ValueError(
            f"`files` must name at least one file or pattern. Received: files={files!r}"
        )
    return tuple(map(os.fspath, names))


def absolute_pattern(folder, pattern):
    """Resolves a path or glob pattern against a folder, whose own name is no pattern.

    >>> absolute_pattern("/texts [1]", "*.txt")
    '/texts [[]1]/*.txt'
    """
    folder, pattern = os.path.abspath(folder), os.path.expanduser(pattern)
    plain = os.path.join(folder, pattern)
    exists = os.path.exists(plain)
    return os.path.normpath(plain if exists else os.path.join(glob.escape(folder), pattern))


def list_text_files(patterns, forms=FORMS):
    """Lists the absolute paths of all files that match, sorted, each once.

    Args:
        patterns: str or list of str. Paths or glob patterns (`**` matches folders at any depth).
        forms: tuple of str. Endings of the formats to accept.

    Raises:
        FileNotFoundError: If a pattern matches no file.
        ValueError: If there is no pattern, or a file has none of these formats, plain, .gz or .xz.
    """
    found = {}
    for pattern in checked_files(patterns):
        if os.path.isdir(pattern):
            raise ValueError(
                f"{pattern!r} is a folder. Name its files: {os.path.join(pattern, '*' + forms[0])!r}"
            )
        # a file's name may itself look like a pattern
        names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        names = [name for name in names if not os.path.isdir(name)]
        if not names:
            raise FileNotFoundError(f"No file matches {pattern!r}. Fix or remove it in `files`.")
        for name in map(os.path.abspath, sorted(names)):
            split_suffixes(name, forms)
            found.setdefault(os.path.realpath(name), name)
    return sorted(found.values())


def split_suffixes(path, forms=FORMS):
    """Splits the name of a text file into its format, one of `forms`, and its compression.

    >>> split_suffixes("texts/wiki.jsonl.xz")
    ('.jsonl', '.xz')
    """
    base, ending = os.path.splitext(path)
    compression = ending if ending in COMPRESSED else ""
    form = os.path.splitext(base)[1] if compression else ending
    if form not in forms:
        raise ValueError(
            f"Expected text files {' or '.join(forms)}, plain, .gz or .xz. Received: {path!r}"
        )
    return form, compression


class TextFileReader:
    r"""Reads the documents of text files, one at a time, and counts what it skips.

    A line is bad if it is not UTF-8, is not JSON, has no string `text`, or is longer than 64 MiB.
    Bad lines are skipped and counted. A file that cannot be read to its end is an error.

    Args:
        txt_documents: str. `"blocks"`: blank lines separate the documents of a .txt file;
            `"lines"`: each line is a document.
        max_bad_lines: int. Number of bad lines to tolerate in all files together. `None` stands for
            100, or 1 % of the lines read so far if that is more.

    Attributes:
        lines: int. Lines read so far.
        bad_lines, empty_documents: int. Number of lines and documents skipped.
        first_bad_lines: list of str. `file:line: reason` of the first bad lines.
        position: int. Bytes read of the current file, as on disk.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.pretraining.text_files import TextFileReader
    >>> path = os.path.join(tempfile.mkdtemp(), "a.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("春眠不觉晓\n处处闻啼鸟\n\n夜来风雨声\n")
    >>> [document.decode() for document in TextFileReader().documents(path)]
    ['春眠不觉晓\n处处闻啼鸟', '夜来风雨声']
    """

    forms = FORMS
    expected = "UTF-8, in .jsonl files one object with a string `text` per line"
    limit_setting = "data.max_bad_lines"  # for the message about too many bad lines

    def __init__(self, txt_documents="blocks", max_bad_lines=None):
        check_one_of("txt_documents", txt_documents, ("blocks", "lines"))
        check_number("max_bad_lines", max_bad_lines, 0, optional=True)
        self.txt_documents = txt_documents
        self.max_bad_lines = max_bad_lines
        self.lines = self.bad_lines = self.empty_documents = self.position = 0
        self.first_bad_lines = []

    @property
    def settings(self):
        """Dict of what the documents of a file depend on."""
        return {"txt_documents": self.txt_documents, "max_bad_lines": self.max_bad_lines}

    def documents(self, path):
        """Yields the documents of a file: UTF-8 bytes, stripped, never empty.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file is damaged, cut off or changed meanwhile, or if there are too
                many bad lines.
        """
        form, compression = split_suffixes(path)
        lines = self._lines(path, compression)
        if form == ".jsonl":
            texts = self._json_texts(path, lines)
        else:
            texts = (text for _, text in lines)
            if self.txt_documents == "blocks":
                texts = _blocks(texts)
        for text in texts:
            text = text.strip()
            if text:
                yield encode_utf8(text)
            else:
                self.empty_documents += 1

    def _lines(self, path, compression):
        """Yields the number and the text of each line, without the line break."""
        number = self.position = 0
        try:
            with open_compressed(path) as (file, raw):
                before = os.fstat(raw.fileno())
                if compression and not before.st_size:
                    raise EOFError("the file is empty")
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    self.lines += 1
                    if number == 1:
                        line = _without_byte_order_mark(path, line)
                    if number % 1024 == 0:
                        self.position = raw.tell()
                    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                        while rest := file.readline(MAX_LINE_BYTES):
                            if rest.endswith(b"\n"):
                                break
                        self._skip(path, number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
                        continue
                    try:
                        text = line.rstrip(b"\r\n").decode()
                    except UnicodeDecodeError as error:
                        place = f"byte 0x{line[error.start]:02x} at position {error.start}"
                        self._skip(path, number, f"not UTF-8 ({place})")
                        continue
                    yield number, text
                after = os.fstat(raw.fileno())
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path}, after line {number}: the compressed file is damaged or cut off "
                f"({error}). Replace it, or remove it from `files`."
            ) from error
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path}, after line {number}: cannot be read: {error.strerror or error}",
            ) from error
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ValueError(f"{path} changed while it was read. Start again when it is complete.")

    def _json_texts(self, path, lines):
        for number, value in self._json_values(path, lines):
            text = value.get("text") if isinstance(value, dict) else None
            if isinstance(text, str):
                yield text
            else:
                self._skip(path, number, "not an object with a string `text`")

    def _json_values(self, path, lines):
        """Yields the number and the JSON value of each line that is not blank."""
        for number, text in lines:
            if is_blank(text):
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                self._skip(path, number, f"not JSON ({error})")
            else:
                yield number, value

    def _skip(self, path, number, reason):
        self.bad_lines += 1
        if len(self.first_bad_lines) < KEPT_REASONS:
            self.first_bad_lines.append(f"{path}:{number}: {reason}")
        limit = self.max_bad_lines
        if limit is None:
            limit = max(TOLERATED_LINES, int(TOLERATED_SHARE * self.lines))
        if self.bad_lines > limit:
            raise ValueError(
                f"{path}, line {number}: {reason}. Now {self.bad_lines} of {self.lines} lines are "
                f"bad, more than the {limit} that are tolerated. The first ones:\n  "
                + "\n  ".join(self.first_bad_lines[:5])
                + f"\nExpected {self.expected}. Fix the files, or raise `{self.limit_setting}`."
            )


def is_blank(line):
    """Returns whether a line is skipped as blank. Other white space, such as U+3000, is no JSON."""
    return not line.strip(" \t\r\v\f")


def _blocks(lines):
    """Joins lines up to the next blank line; a block that gets too large ends early."""
    block, size = [], 0
    for line in lines:
        blank = not line or line.isspace()
        if not blank:
            block.append(line)
            size += len(line)
        if block and (blank or size > MAX_BLOCK_BYTES // 4):  # a character has up to four bytes
            yield "\n".join(block)
            block, size = [], 0
    if block:
        yield "\n".join(block)


def _without_byte_order_mark(path, line):
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"{path}, line 1: the file is UTF-16. Convert it: iconv -f UTF-16 -t UTF-8"
        )
    return line.removeprefix(codecs.BOM_UTF8)
