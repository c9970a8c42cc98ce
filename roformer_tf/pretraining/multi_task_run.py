"""A multi-task run: a pretraining run whose steps train labelled tasks too."""

import dataclasses
import hashlib

import keras

from roformer_tf.pretraining.corpus import prepare_corpus
from roformer_tf.pretraining.labelled_tasks import kind_of
from roformer_tf.pretraining.multi_task_batches import MultiTaskData
from roformer_tf.pretraining.multi_task_pretrainer import MultiTaskPretrainer
from roformer_tf.pretraining.run import Run, start, warn_of_bad_lines
from roformer_tf.pretraining.task_log import TaskLog


def train_tasks(settings, folder, strategy=None, callbacks=(), verbose=True, allow_changes=False):
    r"""Trains a masked LM and labelled tasks on one backbone, one task in each step.

    A labelled task classifies texts or pairs, or it is reading: it answers questions by spans of a
    context.

    A run behaves as one of `pretrain`: it has stages, any replicas and gradient accumulation give
    the same weights, and after any stop the same call resumes from the last checkpoint. The seed
    and the number of a step decide, by the frequencies, which task it trains. Its batch is a
    function of its place in the stream of this task. The loss of a step is the mean over its
    predictions.

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
    return start(MultiTaskRun, settings, folder, strategy, list(callbacks), verbose, allow_changes)


class MultiTaskRun(Run):
    """The run of `train_tasks`."""

    pretrainer_class = MultiTaskPretrainer

    def prepare_data(self):
        super().prepare_data()
        settings, replicas = self.settings, self.strategy.num_replicas_in_sync
        self.examples = []
        for name, task in settings.tasks.items():
            if task.batch_size is not None and task.batch_size % replicas:
                raise ValueError(
                    f"`batch_size` of [tasks.{name}] must be a multiple of the number of replicas, "
                    f"{replicas}. Received: batch_size={task.batch_size}"
                )
            reader = kind_of(task).reader(name, task)
            corpus = prepare_corpus(task.files, self.cache, held_out=task.held_out, reader=reader)
            warn_of_bad_lines(corpus, f"the task {name}")
            self.examples.append(corpus)
        preprocessors = [
            kind_of(task).preprocessor(self.tokenizer, task) for task in settings.tasks.values()
        ]
        self.data = MultiTaskData(
            settings, self.tokenizer, self.corpus, self.examples, preprocessors
        )

    def make_logs(self):
        stages, names, every = (
            self.settings.stages,
            self.settings.names,
            self.settings.run.log_every,
        )
        return [*super().make_logs(), TaskLog(stages, names, self.folder, every)]

    def make_model(self, task):
        self.classifiers = {}
        for number, (name, settings) in enumerate(self.settings.tasks.items(), 1):
            # numbers in the paths of weights: a name could look like that of a norm or bias
            with keras.name_scope(f"task_{number}"):
                preprocessor = self.data.preprocessors[number - 1]
                model = kind_of(settings).model(task.backbone, preprocessor, settings)
                self.classifiers[name] = model
        return super().make_model(task, classifiers=self.classifiers)

    def identity(self):
        identity = super().identity()
        settings = identity["settings"]
        for name, task in settings.pop("tasks").items():
            settings[f"tasks.{name}"] = task  # a table of its own, for messages
        corpora = [self.corpus, *self.examples]
        digest = hashlib.sha256("".join(corpus.fingerprint for corpus in corpora).encode())
        return {**identity, "settings": settings, "corpus": digest.hexdigest()}

    def agreement(self):
        tasks = self.settings.tasks.items()
        tasks = [(name, dataclasses.replace(task, files=("",))) for name, task in tasks]
        return (*super().agreement(), tasks, self.settings.frequencies)

    def batches(self, index, stage_step):
        if not stage_step:
            self.pretrainer.forget_places()
        starts = [(window, position + 1) for window, position in self.pretrainer.places]
        return self.data.training_batches(index, self.pretrainer.steps_done, starts)

    def evaluate(self, index):
        for number, name in enumerate(self.settings.names):
            batches = self.data.held_out_batches(index, number)
            if batches is None:
                continue
            figures = self.pretrainer.evaluate_batches(batches)
            if number == 0:
                self.log_held_out(figures)
            for callback in self.shown:
                if isinstance(callback, TaskLog):
                    callback.log_held_out_task(name, figures)
