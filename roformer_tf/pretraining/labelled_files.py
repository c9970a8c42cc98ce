"""The files of labelled tasks: examples that are classified, and questions with their answers."""

import tensorflow as tf

from roformer_tf.pretraining.text_files import TextFileReader, is_blank, split_suffixes
from roformer_tf.text.strings import encode_utf8

# Between the parts of an example. Texts lose it: tokenizers drop this control character anyway.
SEPARATOR = "\0"


class LabelledReader(TextFileReader):
    """Base class of the readers of labelled examples, which count what they skip.

    A line is bad if it is not UTF-8 or not JSON, is longer than 64 MiB, lacks a field, or has a
    label that a subclass rejects. An example without text is counted as empty. `fields` are the
    names of those with texts; the name of the task is for messages.
    """

    def __init__(self, fields, label, max_bad_lines=None, task="task"):
        super().__init__(max_bad_lines=max_bad_lines)
        self.fields, self.label = fields, label
        self.limit_setting = f"tasks.{task}.max_bad_lines"

    def documents(self, path):
        """Yields the examples of a file: UTF-8 bytes, whose parts are joined by `SEPARATOR`."""
        form, compression = split_suffixes(path, self.forms)
        lines = self._lines(path, compression)
        rows = self._table(path, lines) if form == ".tsv" else self._json_values(path, lines)
        for number, row in rows:
            reason = self._wrong(row)
            if reason:
                self._skip(path, number, reason)
            elif parts := self._parts(row):
                yield encode_utf8(SEPARATOR.join(parts))
            else:
                self.empty_documents += 1

    def _table(self, path, lines):
        """Yields the number and the values of each row: a dict from the name of the column."""
        columns = None
        for number, text in lines:
            values = text.split("\t")
            if number == 1:
                columns = values
                missing = [x for x in (*self.fields, self.label) if x not in columns]
                if missing:
                    raise ValueError(
                        f"{path}, line 1: expected the columns {', '.join(missing)}. Received: "
                        f"{', '.join(columns)}. Name the columns in `text`, `text_pair` and "
                        "`label`."
                    )
            elif columns is None:
                raise ValueError(
                    f"{path}, line 1: expected the names of the columns, in UTF-8. Received a line "
                    "that cannot be read. If the file has another encoding, convert it, such as by "
                    "iconv -f GB18030 -t UTF-8"
                )
            elif is_blank(text):
                continue
            elif len(values) != len(columns):
                self._skip(path, number, f"{len(values)} values for {len(columns)} columns")
            else:
                yield number, dict(zip(columns, values))

    def _wrong(self, row):
        """Returns what is wrong with an example, or `None`."""
        if not isinstance(row, dict):
            return "not an object"
        for name in self.fields:
            if not isinstance(row.get(name), str):
                return f"not an object with a string `{name}`"
        return self._wrong_label(row)

    def _texts_of(self, row):
        return [row[name].replace(SEPARATOR, " ") for name in self.fields]


class ExampleReader(LabelledReader):
    """Reads the examples of a classification from .jsonl, .json and .tsv files.

    A .jsonl or .json file has one JSON object per line. A .tsv file begins with the names of its
    columns; values are separated by tabs, without quotes. Labels are strings or integers. See
    `TaskSettings` for the arguments.
    """

    forms = (".jsonl", ".json", ".tsv")

    def __init__(self, text, label, labels, text_pair=None, **kwargs):
        super().__init__([text] if text_pair is None else [text, text_pair], label, **kwargs)
        self.numbers = {name: number for number, name in enumerate(labels)}
        names = ", ".join(f"`{name}`" for name in (*self.fields, label))
        self.expected = (
            f"UTF-8, one example per line with the fields {names}, and a label of `labels`"
        )

    @property
    def settings(self):
        return {
            "fields": self.fields,
            "label": self.label,
            "labels": list(self.numbers),
            "max_bad_lines": self.max_bad_lines,
        }

    def _parts(self, row):
        texts = [text.strip() for text in self._texts_of(row)]
        return [str(self.numbers[str(row[self.label])]), *texts] if texts[0] else None

    def _wrong_label(self, row):
        label = row.get(self.label)
        if not isinstance(label, str | int) or isinstance(label, bool):
            return f"not an object with a string or an integer `{self.label}`"
        return None if str(label) in self.numbers else f"the label {label!r:.50} is unknown"


def split_examples(examples, num_texts=1):
    """Splits the examples of `ExampleReader`, in a graph.

    Returns labels, int32 `(count,)`, 0 for an empty string in place of an example, followed by each
    of the `num_texts` columns of texts, string `(count,)`.
    """
    parts = tf.strings.split(examples, SEPARATOR).to_tensor(b"", shape=[None, 1 + num_texts])
    labels = tf.where(parts[:, 0] == "", "0", parts[:, 0])
    texts = [parts[:, 1 + i] for i in range(num_texts)]
    return tf.strings.to_number(labels, tf.int32), *texts


class ReadingReader(LabelledReader):
    """Reads questions, contexts and their answers from JSON lines.

    The answers of a line are a list, empty if the context does not answer the question. An answer
    has its text and the character of the context where it starts. It is one of:

    * `["北京", 2]`, as in the original's files;
    * `{"text": "北京", "answer_start": 2}`, as in SQuAD and CMRC 2018.

    `{"text": ["北京"], "answer_start": [2]}` may stand for the list, as in datasets of Hugging Face.
    An answer that is blank or starts at -1 stands for none. A line with an answer that is not in
    the context where it should start is bad. An example needs a question and a context.

    Reference: `mrc_split_and_shuf` of `multi-task/snippets.py` of the original's v2.
    """

    forms = (".jsonl", ".json")

    def __init__(self, question, context, answers, **kwargs):
        super().__init__([question, context], answers, **kwargs)
        self.expected = (
            f"UTF-8, one JSON object per line with the strings `{question}` and `{context}`, and "
            f"with `{answers}`, a list of [text, start] or of text and answer_start"
        )

    @property
    def settings(self):
        return {"reading": [*self.fields, self.label], "max_bad_lines": self.max_bad_lines}

    def _parts(self, row):
        # the context keeps its length: answers count its characters
        question, context = self._texts_of(row)
        if not question.strip() or not context.strip():
            return None
        spans = {(start, start + len(text)): None for text, start in self._found(row)}
        return [" ".join(f"{start} {end}" for start, end in spans), question.strip(), context]

    def _found(self, row):
        """Returns the answers of an example that stand for one, a list of `(text, start)`."""
        pairs = _answer_pairs(row.get(self.label))
        return [(text, start) for text, start in pairs if text.strip() and start != -1]

    def _wrong_label(self, row):
        if _answer_pairs(row.get(self.label)) is None:
            return f"not an object with a list `{self.label}` of answers with text and start"
        name = self.fields[1]
        for text, start in self._found(row):
            if start < 0 or row[name][start : start + len(text)] != text:
                return f"the answer {text!r:.50} does not start at {start} of `{name}`"
        return None


def _answer_pairs(value):
    """Returns answers as a list of `(text, start)`, or `None` if they are written otherwise."""
    if isinstance(value, dict):
        columns = value.get("text"), value.get("answer_start")
        if not all(isinstance(x, list) for x in columns) or len({*map(len, columns)}) > 1:
            return None
        value = list(zip(*columns))
    if not isinstance(value, list):
        return None
    pairs = [(x.get("text"), x.get("answer_start")) if isinstance(x, dict) else x for x in value]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        if not isinstance(pair[0], str) or type(pair[1]) is not int:
            return None
    return pairs


def split_readings(examples):
    """Splits the examples of `ReadingReader`, in a graph.

    Returns answers, int32 `(count, answers, 2)`, start and end (excluded) in characters, -1 for
    padding; and questions and contexts, string `(count,)`.
    """
    parts = tf.strings.split(examples, SEPARATOR).to_tensor(b"", shape=[None, 3])
    numbers = tf.strings.split(parts[:, 0])
    numbers = numbers.with_values(tf.strings.to_number(numbers.values, tf.int32)).to_tensor(-1)
    width = tf.maximum(tf.shape(numbers)[1], 2)  # without any answers, too
    numbers = tf.pad(numbers, [[0, 0], [0, width - tf.shape(numbers)[1]]], constant_values=-1)
    return tf.reshape(numbers, [-1, width // 2, 2]), parts[:, 1], parts[:, 2]
