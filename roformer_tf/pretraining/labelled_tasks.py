"""What the kinds of labelled tasks differ in: their examples, their batches, their model."""

from roformer_tf.models import (
    RoFormerQuestionAnswering,
    RoFormerQuestionAnsweringPreprocessor,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.pretraining.example_files import ExampleReader
from roformer_tf.pretraining.example_windows import ExampleWindows
from roformer_tf.pretraining.reading_files import ReadingReader
from roformer_tf.pretraining.reading_windows import ReadingWindows
from roformer_tf.pretraining.task_settings import ReadingTaskSettings, TaskSettings


class Classification:
    """Tasks that classify texts or pairs of texts."""

    windows_class = ExampleWindows

    @staticmethod
    def reader(name, task):
        """Returns the reader of the files of a task."""
        options = task.text, task.label, task.labels, task.text_pair
        return ExampleReader(*options, max_bad_lines=task.max_bad_lines, task=name)

    @staticmethod
    def preprocessor(tokenizer, task):
        """Returns the preprocessor of the model of a task."""
        return RoFormerTextClassifierPreprocessor(
            tokenizer, sequence_length=task.max_length, pair_segments=task.pair_segments
        )

    @staticmethod
    def model(backbone, preprocessor, task):
        """Returns the model of a task."""
        return RoFormerTextClassifier(
            backbone,
            labels=task.labels,
            preprocessor=preprocessor,
            dropout=0.0,
            pooling=task.pooling,
        )


class Reading:
    """Tasks that answer questions by spans of a context; see `Classification`."""

    windows_class = ReadingWindows

    @staticmethod
    def reader(name, task):
        fields = task.question, task.context, task.answers
        return ReadingReader(*fields, max_bad_lines=task.max_bad_lines, task=name)

    @staticmethod
    def preprocessor(tokenizer, task):
        return RoFormerQuestionAnsweringPreprocessor(
            tokenizer,
            sequence_length=task.max_length,
            max_question_length=task.max_question_length,
            pair_segments=task.pair_segments,
        )

    @staticmethod
    def model(backbone, preprocessor, task):
        return RoFormerQuestionAnswering(backbone, preprocessor, dropout=0.0)


_KINDS = {TaskSettings: Classification, ReadingTaskSettings: Reading}


def kind_of(task):
    """Returns `Classification` or `Reading` for the settings of a task."""
    return _KINDS[type(task)]
