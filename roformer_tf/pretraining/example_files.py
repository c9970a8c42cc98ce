import tensorflow as tf

from roformer_tf.pretraining.text_files import TextFileReader, split_suffixes
from roformer_tf.text.strings import encode_utf8

FORMS = (".jsonl", ".json", ".tsv")
# Between the parts of an example. Texts lose it: tokenizers drop this control character anyway.
SEPARATOR = "\0"


class ExampleReader(TextFileReader):
    r"""Reads the labelled examples of .jsonl, .json and .tsv files, and counts what it skips.

    A .jsonl or .json file has one JSON object per line. A .tsv file begins with the names of its
    columns; values are separated by tabs, without quotes.

    A line is bad if it is not UTF-8 or not JSON, is longer than 64 MiB, has more or fewer values
    than columns, lacks a field, or has a label that is not in `labels`. An example without text is
    counted as empty.

    Args:
        text: str. Name of the field with the text.
        label: str. Name of the field with the label, a string or an integer.
        labels: list of str. All labels, in the order of their classes.
        text_pair: str. Name of the field with the second text, for pairs.
        max_bad_lines: int. See `TextFileReader`.
        task: str. Name of the task, for messages.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.pretraining.example_files import ExampleReader, split_examples
    >>> path = os.path.join(tempfile.mkdtemp(), "train.tsv")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("sentence\tlabel\n房间干净\tgood\n难吃\tbad\n不知道\t?\n")
    >>> reader = ExampleReader("sentence", "label", ["bad", "good"])
    >>> labels, texts = split_examples(list(reader.documents(path)))
    >>> labels.numpy().tolist(), [text.decode() for text in texts.numpy()], reader.bad_lines
    ([1, 0], ['房间干净', '难吃'], 1)
    """

    forms = FORMS

    def __init__(self, text, label, labels, text_pair=None, max_bad_lines=None, task="task"):
        super().__init__(max_bad_lines=max_bad_lines)
        self.fields = [text] if text_pair is None else [text, text_pair]
        self.label = label
        self.numbers = {name: number for number, name in enumerate(labels)}
        names = ", ".join(f"`{name}`" for name in (*self.fields, label))
        self.expected = (
            f"UTF-8, one example per line with the fields {names}, and a label of `labels`"
        )
        self.limit_setting = f"tasks.{task}.max_bad_lines"

    @property
    def settings(self):
        return {
            "fields": self.fields,
            "label": self.label,
            "labels": list(self.numbers),
            "max_bad_lines": self.max_bad_lines,
        }

    def documents(self, path):
        """Yields the examples of a file: UTF-8 bytes that `split_examples` takes apart.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file is damaged, a .tsv file lacks a column, or there are too many
                bad lines.
        """
        form, compression = split_suffixes(path, self.forms)
        lines = self._lines(path, compression)
        rows = self._table(path, lines) if form == ".tsv" else self._json_values(path, lines)
        for number, row in rows:
            reason = self._wrong(row)
            if reason:
                self._skip(path, number, reason)
                continue
            texts = [row[name].replace(SEPARATOR, " ").strip() for name in self.fields]
            if texts[0]:
                label = str(self.numbers[str(row[self.label])])
                yield encode_utf8(SEPARATOR.join([label, *texts]))
            else:
                self.empty_documents += 1

    def _table(self, path, lines):
        """Yields the number and the values of each row: a dict from the name of the column."""
        columns = None
        for number, text in self._numbered_texts(path, lines):
            values = text.split("\t")
            if columns is None:
                columns = values
                missing = [x for x in (*self.fields, self.label) if x not in columns]
                if missing:
                    raise ValueError(
                        f"{path}, line 1: expected the columns {', '.join(missing)}. Received: "
                        f"{', '.join(columns)}. Name the columns in `text`, `text_pair` and "
                        "`label`."
                    )
            elif len(values) != len(columns):
                reason = f"{len(values)} values for {len(columns)} columns"
                self._skip(path, number, reason)
            else:
                yield number, dict(zip(columns, values))

    def _wrong(self, row):
        """Returns what is wrong with an example, or `None`."""
        if not isinstance(row, dict):
            return "not an object"
        for name in self.fields:
            if not isinstance(row.get(name), str):
                return f"not an object with a string `{name}`"
        label = row.get(self.label)
        if not isinstance(label, str | int) or isinstance(label, bool):
            return f"not an object with a string or an integer `{self.label}`"
        return None if str(label) in self.numbers else f"the label {label!r:.50} is unknown"


def split_examples(examples, num_texts=1):
    """Splits the examples of `ExampleReader` into labels and texts, in a graph.

    Args:
        examples: string tensor `(count,)`. An empty string stands for an empty example.
        num_texts: int. Number of texts of an example: 1, or 2 for pairs.

    Returns:
        Labels, int32 `(count,)`, 0 for empty examples, followed by each column of texts, string
        `(count,)`.
    """
    parts = tf.strings.split(examples, SEPARATOR).to_tensor(b"", shape=[None, 1 + num_texts])
    labels = tf.where(parts[:, 0] == "", "0", parts[:, 0])
    texts = [parts[:, 1 + i] for i in range(num_texts)]
    return tf.strings.to_number(labels, tf.int32), *texts
