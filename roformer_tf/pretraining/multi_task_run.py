"""A multi-task run: a pretraining run whose steps train labelled tasks too."""

import dataclasses
import hashlib

import keras
import numpy as np
import tensorflow as tf

from roformer_tf.models import (
    RoFormerQuestionAnswering,
    RoFormerQuestionAnsweringPreprocessor,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.pretraining.batches import (
    HELD_OUT,
    as_stream,
    endless_batches,
    finite_batches,
)
from roformer_tf.pretraining.callbacks import TaskLog
from roformer_tf.pretraining.corpus import prepare_corpus
from roformer_tf.pretraining.labelled_files import ExampleReader, ReadingReader
from roformer_tf.pretraining.labelled_windows import (
    ExampleWindows,
    ReadingWindows,
    example_shards_in_window,
)
from roformer_tf.pretraining.multi_task_pretrainer import MultiTaskPretrainer
from roformer_tf.pretraining.multi_task_settings import ReadingTaskSettings
from roformer_tf.pretraining.run import Run, start, warn_of_bad_lines
from roformer_tf.pretraining.windows import Windows, shards_in_window

_CHOICE = -2  # of the task, in place of the number of a stage


def train_tasks(settings, folder, strategy=None, callbacks=(), verbose=True, allow_changes=False):
    r"""Trains a masked LM and labelled tasks on one backbone, one task in each step.

    A labelled task classifies texts or pairs, or it is reading: it answers questions by spans of a
    context.

    A run behaves like one of `pretrain`: it has stages, and any replicas and gradient accumulation
    give the same weights, up to the masks of dropout. Call it again to resume from the last
    checkpoint. The seed and the number of a step decide, by the frequencies, which task it trains.
    Its batch is a function of its place in the stream of this task. The loss of a step is the mean
    over its predictions.

    Each stage ends with a folder such as `stage-1-512`: the masked LM in the original format, and in
    `tasks/NAME` a preset of each `RoFormerTextClassifier` or `RoFormerQuestionAnswering`, ready to
    predict. Besides the logs of `pretrain`, the folder of the run gets `tasks.csv` with loss and
    accuracy of each task, and `held_out_tasks.csv`. The accuracy of reading is the share of chunks
    whose most probable span is the answer, or none where there is none.

    Args:
        settings: `MultiTaskSettings`.
        folder, strategy, callbacks, verbose, allow_changes: see `pretrain`.

    Returns:
        `PretrainingResult`, with the models of the tasks as `classifiers`.

    Raises:
        FileNotFoundError, ValueError, OSError, ConnectionError, FloatingPointError: see `pretrain`.

    Example:

    >>> import pathlib, tempfile
    >>> from roformer_tf import RoFormerTextClassifier
    >>> from roformer_tf.pretraining import MultiTaskSettings, train_tasks
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("春眠不觉晓，处处闻啼鸟。\n\n" * 40, encoding="utf-8")
    >>> lines = "text\tlabel\n" + "春眠\tspring\n秋声\tautumn\n" * 20
    >>> _ = (folder / "seasons.tsv").write_text(lines, encoding="utf-8")
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"春眠不觉晓处闻啼鸟秋声，。"]
    >>> _ = (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    >>> model = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    >>> settings = MultiTaskSettings.from_dict({
    ...     "data": {"files": ["texts.txt"], "frequency": 1},
    ...     "tasks": {"seasons": {
    ...         "files": ["seasons.tsv"], "text": "text", "label": "label",
    ...         "labels": ["spring", "autumn"], "frequency": 1,
    ...     }},
    ...     "model": {"vocabulary": "vocab.txt", "word_level": False, "norm": "rms_norm", **model},
    ...     "optimizer": {"name": "original_lamb"},
    ...     "stages": [
    ...         {"max_length": 16, "global_batch_size": 4, "steps": 3, "learning_rate": 1e-3}
    ...     ],
    ... }).with_paths_from(folder)
    >>> train_tasks(settings, folder / "run", verbose=False).completed
    True
    >>> task = folder / "run" / "stage-1-16" / "tasks" / "seasons"
    >>> classifier = RoFormerTextClassifier.from_preset(task)
    >>> sorted(label for label, _ in classifier.classify("春眠"))
    ['autumn', 'spring']

    Reference: `multi-task/main.py` of the original's v2.
    """
    return start(MultiTaskRun, settings, folder, strategy, callbacks, verbose, allow_changes)


class MultiTaskRun(Run):
    """The run of `train_tasks`."""

    def prepare_data(self):
        super().prepare_data()
        settings, replicas = self.settings, self.strategy.num_replicas_in_sync
        self.any_reads = any(map(_reads, settings.tasks.values()))
        self.corpora, self.preprocessors = [self.corpus], []
        for name, task in settings.tasks.items():
            if task.batch_size is not None and task.batch_size % replicas:
                raise ValueError(
                    f"`batch_size` of [tasks.{name}] must be a multiple of the number of replicas, "
                    f"{replicas}. Received: batch_size={task.batch_size}"
                )
            reader = _make_reader(name, task)
            corpus = prepare_corpus(task.files, self.cache, held_out=task.held_out, reader=reader)
            warn_of_bad_lines(corpus, f"the task {name}")
            self.corpora.append(corpus)
            self.preprocessors.append(_make_preprocessor(self.tokenizer, task))
        self.shards_in_window = [
            [shards_in_window(self.corpus, stage, settings.data)]
            + [
                example_shards_in_window(corpus, name, task, stage, settings.data)
                for corpus, (name, task) in zip(self.corpora[1:], settings.tasks.items())
            ]
            for stage in settings.stages
        ]

    def make_logs(self):
        stages, every = self.settings.stages, self.settings.run.log_every
        self.task_log = TaskLog(stages, self.settings.names, self.folder, every)
        return [*super().make_logs(), self.task_log]

    def make_model(self, task, **options):
        self.classifiers = {}
        for number, (name, settings) in enumerate(self.settings.tasks.items(), 1):
            # numbers in the paths of weights: a name could look like that of a norm or bias
            with keras.name_scope(f"task_{number}"):
                preprocessor = self.preprocessors[number - 1]
                self.classifiers[name] = _make_task_model(task.backbone, preprocessor, settings)
        return MultiTaskPretrainer(task, self.classifiers, **options)

    def identity(self):
        identity = super().identity()
        settings = identity["settings"]
        for name, task in settings.pop("tasks").items():
            settings[f"tasks.{name}"] = task  # a table of its own, for messages
        digest = hashlib.sha256("".join(corpus.fingerprint for corpus in self.corpora).encode())
        return {**identity, "settings": settings, "corpus": digest.hexdigest()}

    def agreement(self):
        tasks = self.settings.tasks.items()
        tasks = [(name, dataclasses.replace(task, files=("",))) for name, task in tasks]
        return (*super().agreement(), tasks, self.settings.frequencies)

    def batches(self, index, stage_step):
        if not stage_step:
            self.pretrainer.forget_places()
        starts = [(window, position + 1) for window, position in self.pretrainer.places]
        return self.batches_from(index, self.pretrainer.steps_done, starts)

    def batches_from(self, index, first_step, places):
        """Makes an endless dataset of the batches of a stage, each for the task of its step.

        A batch of a task is a function of the seed, the stage and its place in the stream of the
        task. Batches are those of `training_batches`, for labelled tasks with one label for each
        sequence, and with the number of the `task` (0 for the masked LM), int32 `(batch,)`. If any
        task is reading, also with `answer_mask`, int32 `(batch, sequence_length)`; see
        `RoFormerQuestionAnswering`.

        Args:
            index: int. Number of the stage.
            first_step: int. Steps of the run before the first batch.
            places: list of tuples `(window, index)`. Place of the first batch of each task.
        """
        settings = self.settings
        streams = [
            endless_batches(
                self._windows(index, number),
                start,
                service=None if number else settings.data.service,
            ).map(lambda batch, number=number: self._with_task(batch, number))
            for number, start in enumerate(places)
        ]
        choices = tf.data.Dataset.range(first_step, tf.int64.max).map(
            lambda step: task_of_step(step, settings.run.seed, settings.frequencies)
        )
        batches = tf.data.Dataset.choose_from_datasets(streams, choices)
        batches = batches.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )
        return as_stream(batches)

    def evaluate(self, index):
        for number, name in enumerate(self.settings.names):
            if not self.corpora[number].held_out_shards:
                continue
            windows = self._windows(index, number, held_out=True)
            batches = finite_batches(windows, self.settings.run.held_out_batches)
            batches = batches.map(lambda batch, number=number: self._with_task(batch, number))
            figures = self.evaluate_batches(index, batches)
            if number == 0:
                self.log_held_out(figures)
            self.task_log.log_held_out_task(name, figures)

    def _windows(self, index, number, held_out=False):
        settings, count = self.settings, self.shards_in_window[index][number]
        stage, data = settings.stages[index], settings.data
        corpus = self.corpora[number]
        shards, seed = corpus.shards, (settings.run.seed, index)
        if held_out:
            shards, seed = corpus.held_out_shards, (settings.run.seed, HELD_OUT)
            count = min(count, len(shards))
        if number == 0:
            return Windows(shards, self.tokenizer, stage, data, seed, count, held_out)
        task = settings.tasks[settings.names[number]]
        windows = ReadingWindows if _reads(task) else ExampleWindows
        preprocessor = self.preprocessors[number - 1]
        return windows(shards, preprocessor, task, number, stage, data, seed, count, held_out)

    def _with_task(self, batch, number):
        if self.any_reads:  # all batches must have the same keys
            batch = {"answer_mask": batch["padding_mask"], **batch}
        return {**batch, "task": tf.fill(tf.shape(batch["window"]), number)}


def task_of_step(step, seed, frequencies):
    """Draws the task that a step trains: int64, as a function of the seed and the steps done.

    >>> [int(task_of_step(tf.constant(step, tf.int64), 0, [3.0, 1.0])) for step in range(8)]
    [0, 0, 0, 0, 0, 1, 0, 1]
    """
    shares = np.cumsum(np.asarray(frequencies, "float64"))
    shares = tf.constant(shares[:-1] / shares[-1])
    seed = tf.random.experimental.stateless_fold_in(tf.constant([seed, _CHOICE], tf.int64), step)
    draw = tf.random.stateless_uniform([1], seed, dtype=tf.float64)
    return tf.searchsorted(shares, draw, side="right", out_type=tf.int64)[0]


# === What the two kinds of labelled tasks differ in ===


def _reads(task):
    return isinstance(task, ReadingTaskSettings)


def _make_reader(name, task):
    options = {"max_bad_lines": task.max_bad_lines, "task": name}
    if _reads(task):
        return ReadingReader(task.question, task.context, task.answers, **options)
    return ExampleReader(task.text, task.label, task.labels, task.text_pair, **options)


def _make_preprocessor(tokenizer, task):
    options = {"sequence_length": task.max_length, "pair_segments": task.pair_segments}
    if _reads(task):
        return RoFormerQuestionAnsweringPreprocessor(
            tokenizer, max_question_length=task.max_question_length, **options
        )
    return RoFormerTextClassifierPreprocessor(tokenizer, **options)


def _make_task_model(backbone, preprocessor, task):
    if _reads(task):
        return RoFormerQuestionAnswering(backbone, preprocessor, dropout=0.0)
    return RoFormerTextClassifier(
        backbone,
        labels=task.labels,
        preprocessor=preprocessor,
        dropout=0.0,
        pooling=task.pooling,
    )
