"""Tasks whose `predict` answers in the words of the texts that it is given."""

import functools
import types

import keras
import numpy as np
import tensorflow as tf

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.batches import count_rows, is_dataset, to_columns
from roformer_tf.models.prediction import check_finite_outputs, predict_batches, predict_inputs
from roformer_tf.models.roformer_task import RoFormerTask
from roformer_tf.portable import trace_quietly


class AnsweringTask(RoFormerTask):
    """Base class of tasks whose `predict` gives answers, and not the outputs of the model.

    `fit` takes labels as lists, such as the entities of each text. Subclasses have:

    * `encode_labels(y)`, from such lists to a tensor;
    * `check_examples(x, y)`, which raises `ValueError` if lists of labels do not fit their texts;
    * `pack(x)`, from string tensors to the inputs of the model, and details for its answers;
    * `decode(outputs, details, num_examples)`, from outputs to tensors of answers, in a graph;
    * `to_answers(tensors)`, from these to a list with an entry for each example;
    * `default_loss()`.
    """

    needs_labels = True
    has_masked_outputs = True

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """Configures training; see `keras.Model.compile`.

        Args:
            optimizer: By default Adam with a learning rate of 5e-5.
            loss: By default that of the task's head; see the class.
            metrics: List of metrics of the outputs, by default none, and accuracy for choices.
                Scores such as `entity_f1` need whole answers: see `AnswerMetrics`.
            **kwargs: Arguments of `keras.Model.compile`.

        Raises:
            ValueError: If a metric is a name, such as `"accuracy"`, and the task is not choices.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(5e-5)
        if loss == "auto":
            loss = self.default_loss()
        if metrics == "auto":
            metrics = self.default_metrics()
        elif self.default_metrics() is None and any(
            isinstance(metric, str) for metric in keras.tree.flatten(metrics)
        ):
            raise ValueError(
                "Metrics of Keras cannot compare whole answers with the outputs of the model. Use "
                f"the callback `AnswerMetrics`. Received: metrics={metrics}"
            )
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def default_metrics(self):
        """Returns the metrics of the outputs."""
        return None

    def convert_labels(self, x, y):
        labels = self.encode_labels(y)
        self.check_examples(x, y)
        return labels

    def predict(
        self,
        x,
        batch_size=None,
        verbose="auto",
        steps=None,
        callbacks=None,
        max_tokens_per_batch=None,
        **options,
    ):
        """Returns the answers for each example, in the order given; see the class.

        Args:
            x: The same data as in `fit`, without labels. With model inputs in place of texts, the
                outputs of the model are returned.
            batch_size, verbose, steps, callbacks, max_tokens_per_batch: See `RoFormerTask.predict`.

        Returns:
            List with an entry for each example.

        Raises:
            ValueError: As `fit`; and if the outputs are NaN.
            TypeError: As `fit`.
        """
        check_positive_integer("steps", steps, optional=True)
        x, _ = self.check_data(x)
        if not self.are_texts(x):
            return super().predict(x, batch_size, verbose, steps, callbacks, max_tokens_per_batch)

        x = x if is_dataset(x) else to_columns(x)[0]
        answer = functools.partial(self._answer, **options)
        found = predict_batches(
            self, x, batch_size, verbose, steps, callbacks, max_tokens_per_batch, answer
        )
        return found.tolist()

    def _answer(self, x, **options):
        """Returns the answers to a batch of string tensors, an array of objects."""
        inputs, details = self.pack(x)
        outputs = predict_inputs(self, inputs, may_pad=True)
        outputs = self.crop(outputs, inputs["token_ids"].shape[-1])
        check_finite_outputs(outputs, self)
        found = self.to_answers(self.decoded(outputs, details, count_rows(x), **options))
        answers = np.empty(len(found), object)
        for row, answer in enumerate(found):  # NumPy would look into lists
            answers[row] = answer
        return answers

    def crop(self, outputs, width):
        """Returns outputs without padding beyond a number of tokens."""
        return outputs

    def decoded(self, outputs, details, count, **options):
        """Calls `decode`, on TensorFlow as a graph."""
        if keras.backend.backend() != "tensorflow":
            return self.decode(outputs, details, count, **options)
        if not hasattr(self, "_decoder"):
            decode = trace_quietly(tf.function(self.decode, reduce_retracing=True, autograph=False))
            # in a plain object, into which Keras does not look
            self._decoder = types.SimpleNamespace(decode=decode)
        return self._decoder.decode(tf.constant(outputs), details, tf.constant(count), **options)
