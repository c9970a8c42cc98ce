"""The stream of batches of a multi-task run, and the held-out batches of its tasks."""

import numpy as np
import tensorflow as tf

from roformer_tf.pretraining.batches import (
    HELD_OUT,
    PREFETCH,
    endless_batches,
    finite_batches,
    stream_options,
)
from roformer_tf.pretraining.example_windows import example_shards_in_window
from roformer_tf.pretraining.labelled_tasks import Reading, kind_of
from roformer_tf.pretraining.windows import Windows, shards_in_window

_CHOICE = -2  # of the task, in place of the number of a stage


def task_of_step(step, seed, frequencies):
    """Draws the task that a step trains, as a function of seed and step.

    Args:
        step: int64 scalar tensor. Steps done since the start of the run.
        seed: int. Seed of the run.
        frequencies: list of floats. How often each task is drawn, relative to the others.

    Returns:
        int64 scalar tensor.

    >>> [int(task_of_step(tf.constant(step, tf.int64), 0, [3.0, 1.0])) for step in range(8)]
    [0, 0, 0, 0, 0, 1, 0, 1]
    """
    shares = np.cumsum(np.asarray(frequencies, "float64"))
    shares = tf.constant(shares[:-1] / shares[-1])
    seed = tf.random.experimental.stateless_fold_in(tf.constant([seed, _CHOICE], tf.int64), step)
    draw = tf.random.stateless_uniform([1], seed, dtype=tf.float64)
    return tf.searchsorted(shares, draw, side="right", out_type=tf.int64)[0]


class MultiTaskData:
    """Makes the batches of a multi-task run from its texts and examples.

    Args:
        settings: `MultiTaskSettings`.
        tokenizer: a `RoFormerTokenizer`.
        corpus: `Corpus` of the masked LM.
        examples: list of `Corpus`, one for each task.
        preprocessors: list of the preprocessors of the tasks' models.

    Raises:
        ValueError: If there are far too few texts or examples for a batch of a stage.
    """

    def __init__(self, settings, tokenizer, corpus, examples, preprocessors):
        self.settings = settings
        self.tokenizer = tokenizer
        self.corpora = [corpus, *examples]
        self.preprocessors = preprocessors
        self.any_reads = any(kind_of(task) is Reading for task in settings.tasks.values())
        self._shards = [
            [shards_in_window(corpus, stage, settings.data)]
            + [
                example_shards_in_window(own, name, task, stage, settings.data)
                for own, (name, task) in zip(examples, settings.tasks.items())
            ]
            for stage in settings.stages
        ]

    def training_batches(self, stage_index, first_step, places):
        """Makes an endless dataset of the batches of a stage, each for the task of its step.

        A batch of a task is a function of the seed, the stage and its place in the stream of the
        task, as in `training_batches` of a pretraining run.

        Args:
            stage_index: int.
            first_step: int. Steps of the run before the first batch.
            places: list of tuples `(window, index)`. Place of the first batch of each task.

        Returns:
            `tf.data.Dataset` of dicts like those of `training_batches`, for labelled tasks with one
            label for each sequence, and with the number of the `task` (0 for the masked LM), int32
            `(batch,)`. If any task is reading, also with `answer_mask`, int32 `(batch,
            sequence_length)`; see `RoFormerQuestionAnswering`.
        """
        settings = self.settings
        streams = [
            endless_batches(
                self._windows(stage_index, number),
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
        return batches.with_options(stream_options()).prefetch(PREFETCH)

    def held_out_batches(self, stage_index, number):
        """Makes the held-out batches of a task, or returns `None` if none of it is held out."""
        if not self.corpora[number].held_out_shards:
            return None
        windows = self._windows(stage_index, number, held_out=True)
        batches = finite_batches(windows, self.settings.run.held_out_batches)
        return batches.map(lambda batch: self._with_task(batch, number))

    def _windows(self, stage_index, number, held_out=False):
        settings, count = self.settings, self._shards[stage_index][number]
        stage, data = settings.stages[stage_index], settings.data
        corpus = self.corpora[number]
        shards, seed = corpus.shards, (settings.run.seed, stage_index)
        if held_out:
            shards, seed = corpus.held_out_shards, (settings.run.seed, HELD_OUT)
            count = min(count, len(shards))
        if number == 0:
            return Windows(shards, self.tokenizer, stage, data, seed, count, held_out)
        task = settings.tasks[settings.names[number]]
        preprocessor = self.preprocessors[number - 1]
        return kind_of(task).windows_class(
            shards, preprocessor, task, number, stage, data, seed, count, held_out
        )

    def _with_task(self, batch, number):
        if self.any_reads:  # all batches must have the same keys
            batch = {"answer_mask": batch["padding_mask"], **batch}
        return {**batch, "task": tf.fill(tf.shape(batch["window"]), number)}
