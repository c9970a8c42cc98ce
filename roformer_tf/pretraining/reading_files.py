import tensorflow as tf

from roformer_tf.pretraining.example_files import SEPARATOR
from roformer_tf.pretraining.text_files import TextFileReader, split_suffixes
from roformer_tf.text.strings import encode_utf8

FORMS = (".jsonl", ".json")


class ReadingReader(TextFileReader):
    r"""Reads questions, contexts and their answers from JSON lines, and counts what it skips.

    The answers of a line are a list, empty if the context does not answer the question. An answer
    has its text and the character of the context where it starts. It is one of:

    * `["北京", 2]`, as in the original's files;
    * `{"text": "北京", "answer_start": 2}`, as in SQuAD and CMRC 2018.

    `{"text": ["北京"], "answer_start": [2]}` may stand for the list, as in datasets of Hugging Face.
    An answer that is blank or starts at -1 stands for none.

    A line is bad if it is not UTF-8 or not JSON, is longer than 64 MiB, lacks a field, or has an
    answer that is not in the context where it should start. An example without question or context
    is counted as empty.

    Args:
        question: str. Name of the field with the question.
        context: str. Name of the field with the context.
        answers: str. Name of the field with the answers.
        max_bad_lines: int. See `TextFileReader`.
        task: str. Name of the task, for messages.

    Example:

    >>> import json, os, tempfile
    >>> from roformer_tf.pretraining.reading_files import ReadingReader, split_readings
    >>> path = os.path.join(tempfile.mkdtemp(), "train.jsonl")
    >>> rows = [{"q": "谁", "p": "我和你", "a": [["我", 0], ["你", 2]]}]
    >>> rows += [{"q": "谁", "p": "春眠", "a": []}, {"q": "谁", "p": "春眠", "a": [["眠", 0]]}]
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("\n".join(map(json.dumps, rows)))
    >>> reader = ReadingReader("q", "p", "a")
    >>> answers, question, context = split_readings(list(reader.documents(path)))
    >>> answers.numpy().tolist(), [text.decode() for text in context.numpy()], reader.bad_lines
    ([[[0, 1], [2, 3]], [[-1, -1], [-1, -1]]], ['我和你', '春眠'], 1)

    Reference: `mrc_split_and_shuf` of `multi-task/snippets.py` of the original's v2.
    """

    forms = FORMS

    def __init__(self, question, context, answers, max_bad_lines=None, task="task"):
        super().__init__(max_bad_lines=max_bad_lines)
        self.question, self.context, self.answers = question, context, answers
        self.expected = (
            f"UTF-8, one JSON object per line with the strings `{question}` and `{context}`, and "
            f"with `{answers}`, a list of [text, start] or of text and answer_start"
        )
        self.limit_setting = f"tasks.{task}.max_bad_lines"

    @property
    def settings(self):
        return {
            "reading": [self.question, self.context, self.answers],
            "max_bad_lines": self.max_bad_lines,
        }

    def documents(self, path):
        """Yields the examples of a file: UTF-8 bytes that `split_readings` takes apart.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file is damaged, or there are too many bad lines.
        """
        _, compression = split_suffixes(path, self.forms)
        for number, row in self._json_values(path, self._lines(path, compression)):
            reason = self._wrong(row)
            if reason:
                self._skip(path, number, reason)
                continue
            # of the same length: answers count the characters of the context
            question, context = (
                row[name].replace(SEPARATOR, " ") for name in (self.question, self.context)
            )
            if question.strip() and context.strip():
                spans = {(start, start + len(text)): None for text, start in self._found(row)}
                numbers = " ".join(f"{start} {end}" for start, end in spans)
                yield encode_utf8(SEPARATOR.join([numbers, question.strip(), context]))
            else:
                self.empty_documents += 1

    def _found(self, row):
        """Returns the answers of an example that stand for one, a list of `(text, start)`."""
        pairs = _answer_pairs(row.get(self.answers))
        return [(text, start) for text, start in pairs if text.strip() and start != -1]

    def _wrong(self, row):
        """Returns what is wrong with an example, or `None`."""
        if not isinstance(row, dict):
            return "not an object"
        for name in (self.question, self.context):
            if not isinstance(row.get(name), str):
                return f"not an object with a string `{name}`"
        if _answer_pairs(row.get(self.answers)) is None:
            return f"not an object with a list `{self.answers}` of answers with text and start"
        for text, start in self._found(row):
            if start < 0 or row[self.context][start : start + len(text)] != text:
                return f"the answer {text!r:.50} does not start at {start} of `{self.context}`"
        return None


def split_readings(examples):
    """Splits the examples of `ReadingReader`, in a graph.

    Args:
        examples: string tensor `(count,)`.

    Returns:
        Answers, int32 `(count, answers, 2)`, start and end (excluded) in characters, -1 for
        padding; and questions and contexts, string `(count,)`.
    """
    parts = tf.strings.split(examples, SEPARATOR).to_tensor(b"", shape=[None, 3])
    numbers = tf.strings.split(parts[:, 0])
    numbers = numbers.with_values(tf.strings.to_number(numbers.values, tf.int32)).to_tensor(-1)
    width = tf.maximum(tf.shape(numbers)[1], 2)  # without any answers, too
    numbers = tf.pad(numbers, [[0, 0], [0, width - tf.shape(numbers)[1]]], constant_values=-1)
    return tf.reshape(numbers, [-1, width // 2, 2]), parts[:, 1], parts[:, 2]


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
