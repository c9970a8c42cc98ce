"""The settings file of a multi-task run: that of a pretraining run, and a table for each task."""

import dataclasses
import re
import tomllib
from pathlib import Path

from roformer_tf.checks import check_number, check_one_of
from roformer_tf.pretraining.settings import (
    DataSettings,
    PretrainingSettings,
    absolute_path,
)
from roformer_tf.pretraining.task_settings import LEAST_FREQUENCY, make_task_settings

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclasses.dataclass(frozen=True)
class TextSettings(DataSettings):
    """`[data]`: the texts of the masked LM, and how often it is trained.

    Args:
        frequency: float. How often a step trains the masked LM, relative to the tasks.
        files, mask_rate, whole_word, …: see `DataSettings`.
    """

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
                task, files=tuple(absolute_path(folder, file) for file in task.files)
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
