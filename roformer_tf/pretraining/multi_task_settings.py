"""The settings file of a multi-task run: that of a pretraining run, and a table for each task."""

import dataclasses
import re
import tomllib
from pathlib import Path

from roformer_tf.checks import check_number, check_one_of, check_positive_integer, check_types
from roformer_tf.models.labels import check_names
from roformer_tf.pretraining.settings import DataSettings, PretrainingSettings, make
from roformer_tf.pretraining.text_files import absolute_pattern, checked_files

LEAST_FREQUENCY = 1e-9
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """`[tasks.NAME]`: the classification of texts, or of pairs of texts.

    Args:
        files: str or list of str. Paths or patterns of .jsonl, .json or .tsv files, plain, .gz or
            .xz; see `ExampleReader`.
        text: str. Name of the field with the text.
        label: str. Name of the field with the label.
        labels: list of str. All labels, in the order of their classes.
        frequency: float. How often a step trains this task, relative to the others.
        text_pair: str. Name of the field with the second text, for pairs.
        max_length: int. Maximum number of tokens, special tokens included. A stage may cut
            further.
        batch_size: int. Examples per step. Defaults to the `global_batch_size` of the stage.
        mask_rate: float. Share of the tokens to hide from the task. The original's scripts hide
            0.15.
        pooling: str. `"cls"` or `"mean"`; see `RoFormerTextClassifier`.
        pair_segments: bool. Whether the second text of a pair has segment id 1. In v2 it has 0.
        held_out: float in [0, 1]. Share of the examples to hold out, for measuring loss and
            accuracy.
        max_bad_lines: int. See `prepare_corpus`.

    Raises:
        ValueError: If a value is wrong. The message names the key.

    Example:

    >>> from roformer_tf.pretraining import TaskSettings
    >>> task = TaskSettings(
    ...     files="tnews/train.json", text="sentence", label="label_desc",
    ...     labels=["news_story", "news_sports"], frequency=5,
    ... )
    >>> task.files, task.max_length
    (('tnews/train.json',), 512)
    """

    files: tuple
    text: str
    label: str
    labels: tuple
    frequency: float
    text_pair: str | None = None
    max_length: int = 512
    batch_size: int | None = None
    mask_rate: float = 0.0
    pooling: str = "cls"
    pair_segments: bool = False
    held_out: float = 0.0
    max_bad_lines: int | None = None

    def __post_init__(self):
        _check_common(self)
        labels = self.labels
        check_names(labels)
        if len(labels) < 2:
            raise ValueError(f"`labels` must name at least two classes. Received: {labels!r}")
        object.__setattr__(self, "labels", tuple(labels))
        check_one_of("pooling", self.pooling, ("cls", "mean"))


@dataclasses.dataclass(frozen=True)
class ReadingTaskSettings:
    """`[tasks.NAME]`: reading, questions whose answers are spans of a context.

    Args:
        files: str or list of str. Paths or patterns of .jsonl or .json files, plain, .gz or .xz,
            with one JSON object per line; see `ReadingReader`.
        question: str. Name of the field with the question.
        context: str. Name of the field with the context.
        answers: str. Name of the field with the answers: a list of `[text, start]` or of
            `{"text": …, "answer_start": …}`, empty if there is none.
        frequency: float. How often a step trains this task, relative to the others.
        max_length: int. Maximum number of tokens of a chunk, question and special tokens included.
            A stage may make them shorter.
        max_question_length: int. Number of tokens after which a question is cut off, in any case
            half of `max_length`.
        chunk_step: int. Number of tokens from the start of a chunk of a long context to the start
            of the next, at most half a chunk.
        batch_size: int. Chunks per step. Defaults to the `global_batch_size` of the stage.
        mask_rate: float. Share of the tokens to hide from the task. The original's scripts hide
            0.15.
        pair_segments: bool. Whether the context has segment id 1. In v2 it has 0.
        held_out: float in [0, 1]. Share of the lines to hold out, for measuring loss and accuracy.
        max_bad_lines: int. See `prepare_corpus`.

    Raises:
        ValueError: If a value is wrong. The message names the key.

    Example:

    >>> from roformer_tf.pretraining import ReadingTaskSettings
    >>> task = ReadingTaskSettings(
    ...     files="webqa.json", question="question", context="passage", answers="answers",
    ...     frequency=5,
    ... )
    >>> task.files, task.chunk_step
    (('webqa.json',), 128)
    """

    files: tuple
    question: str
    context: str
    answers: str
    frequency: float
    max_length: int = 512
    max_question_length: int = 128
    chunk_step: int = 128
    batch_size: int | None = None
    mask_rate: float = 0.0
    pair_segments: bool = False
    held_out: float = 0.0
    max_bad_lines: int | None = None

    def __post_init__(self):
        _check_common(self)
        for name in ("max_question_length", "chunk_step"):
            check_positive_integer(name, getattr(self, name))


# Keys that only one kind of task has.
_CLASSIFIES = ("text", "text_pair", "label", "labels", "pooling")
_READS = ("question", "context", "answers", "max_question_length", "chunk_step")


def make_task_settings(name, values):
    """Makes `TaskSettings` or `ReadingTaskSettings` of a table, whose keys tell which.

    Args:
        name: str. Name of the task.
        values: dict.

    Raises:
        ValueError: If keys of both kinds are there or of neither, a key is unknown or missing, or a
            value is wrong. Names the key.
    """
    table = f"tasks.{name}"
    classifies = [key for key in _CLASSIFIES if key in values]
    reads = [key for key in _READS if key in values]
    if classifies and reads:
        raise ValueError(
            f"[{table}] has keys of two kinds of tasks: {', '.join(classifies)} of classification, "
            f"and {', '.join(reads)} of reading. Keep those of one kind."
        )
    if not classifies and not reads:
        raise ValueError(
            f"[{table}] lacks the fields of its examples: `text`, `label` and `labels` for "
            "classification, or `question`, `context` and `answers` for reading. Received: "
            f"{', '.join(values) or 'no key'}"
        )
    return make(ReadingTaskSettings if reads else TaskSettings, values, table)


def _check_common(task):
    """Checks what all kinds of tasks have; makes `files` a tuple."""
    check_types(task)
    object.__setattr__(task, "files", checked_files(task.files))
    check_number("frequency", task.frequency, LEAST_FREQUENCY)
    check_positive_integer("max_length", task.max_length)
    if task.max_length < 8:
        raise ValueError(f"`max_length` must be at least 8. Received: max_length={task.max_length}")
    check_positive_integer("batch_size", task.batch_size, optional=True)
    for name in ("mask_rate", "held_out"):
        check_number(name, getattr(task, name), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class TextSettings(DataSettings):
    """`[data]`: the texts of the masked LM, and how often a step trains it, relative to the tasks."""

    frequency: float = 60.0

    def __post_init__(self):
        super().__post_init__()
        check_number("frequency", self.frequency, LEAST_FREQUENCY)
        check_one_of("objective", self.objective, ("masked_lm",))


@dataclasses.dataclass(frozen=True)
class MultiTaskSettings(PretrainingSettings):
    """All settings of a multi-task run: those of `PretrainingSettings`, and the tasks.

    Args:
        tasks: dict from the name of a task to `TaskSettings` or `ReadingTaskSettings`.

    Raises:
        ValueError: If there is no task, or a name is `masked_lm` or has characters other than
            letters, digits, `_` and `-`.

    Example:

    >>> from roformer_tf.pretraining import MultiTaskSettings
    >>> settings = MultiTaskSettings.from_dict({
    ...     "data": {"files": ["texts/*.jsonl"], "frequency": 60},
    ...     "model": {"checkpoint": "chinese_roformer-v2-char_L-12_H-768_A-12"},
    ...     "optimizer": {"name": "original_lamb"},
    ...     "stages": [
    ...         {"max_length": 512, "global_batch_size": 256, "steps": 9, "learning_rate": 1.76e-4}
    ...     ],
    ...     "tasks": {
    ...         "ocnli": {
    ...             "files": ["ocnli/train.json"], "text": "sentence1", "text_pair": "sentence2",
    ...             "label": "label", "labels": ["entailment", "neutral", "contradiction"],
    ...             "frequency": 5,
    ...         }
    ...     },
    ... })
    >>> settings.names, settings.frequencies
    (('masked_lm', 'ocnli'), (60, 5))
    """

    tasks: dict = dataclasses.field(default_factory=dict, hash=False)

    tables = {**PretrainingSettings.tables, "data": TextSettings}

    def __post_init__(self):
        super().__post_init__()
        if not self.tasks:
            raise ValueError(
                "There must be at least one task (`[tasks.NAME]`). Without tasks use `pretrain`."
            )
        for name in self.tasks:
            if not _NAME.fullmatch(name) or name == "masked_lm":
                raise ValueError(
                    "The name of a task must consist of letters, digits, `_` and `-`, and differ "
                    f"from masked_lm. Received: {name!r}"
                )

    @property
    def names(self):
        """Names of the masked LM and the tasks, in the order of their numbers."""
        return ("masked_lm", *self.tasks)

    @property
    def frequencies(self):
        """Frequencies of the masked LM and the tasks."""
        return (self.data.frequency, *(task.frequency for task in self.tasks.values()))

    @classmethod
    def parts_from(cls, values):
        tasks = values.pop("tasks", {})
        if not isinstance(tasks, dict) or not all(isinstance(x, dict) for x in tasks.values()):
            raise ValueError("Write each task as a table `[tasks.NAME]`.")
        made = super().parts_from(values)
        made["tasks"] = {name: make_task_settings(name, x) for name, x in tasks.items()}
        return made

    def with_paths_from(self, folder):
        tasks = {
            name: dataclasses.replace(
                task, files=tuple(absolute_pattern(folder, file) for file in task.files)
            )
            for name, task in self.tasks.items()
        }
        return dataclasses.replace(super().with_paths_from(folder), tasks=tasks)


def settings_class(path):
    """Returns `MultiTaskSettings` for a settings file with tasks, else `PretrainingSettings`."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):  # `from_file` explains it
        return PretrainingSettings
    return MultiTaskSettings if "tasks" in values else PretrainingSettings
