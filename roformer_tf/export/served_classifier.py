"""The signatures of an exported text classifier."""

import contextlib

import keras
import tensorflow as tf

from roformer_tf.export.served_model import ServedAnswers


class ServedClassifier(ServedAnswers):
    """Serves `probabilities`, `logits`, `class_id` and `label`, or the `scores` of a regression.

    Args:
        task: `RoFormerTextClassifier`.
        preprocessor: `RoFormerTextClassifierPreprocessor`.
        vocabulary_file: See `ServedModel`.
        labels_file: path of a text file with one label a line, or `None`.
        name: str. Name of the module.

    Example:

    >>> import keras
    >>> from roformer_tf.export.served_classifier import output_kind
    >>> output_kind(3, keras.activations.linear), output_kind(1, keras.activations.linear)
    ('softmax', 'scores')
    """

    def __init__(self, task, preprocessor, vocabulary_file, labels_file=None, name=None):
        super().__init__(task, preprocessor, vocabulary_file, name)
        self._kind = output_kind(task.num_classes, task.activation)
        self._label_of_class = None
        if labels_file is not None:
            # looks labels up in the asset, so editing that file changes the answers
            self._label_of_class = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    labels_file,
                    *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
                    *(tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
                ),
                "",
            )

    def prepare(self, texts):
        """Returns the model inputs of strings, or of a tuple of two."""
        return self._python.preprocessor(texts)

    def answer(self, inputs):
        """Returns a dict of named outputs; see `export_saved_model`."""
        if self._kind == "scores":
            return {"scores": self.outputs(inputs)}
        with _without_activation(self._python.task.logits_dense):
            logits = self.outputs(inputs)
        if self._kind == "binary":
            probabilities = tf.sigmoid(logits)
            class_id = tf.cast(probabilities[:, 0] > 0.5, tf.int32)
        else:
            activate = tf.nn.softmax if self._kind == "softmax" else tf.sigmoid
            probabilities = activate(logits)
            class_id = tf.argmax(logits, axis=-1, output_type=tf.int32)
        answer = {"probabilities": probabilities, "logits": logits, "class_id": class_id}
        if self._label_of_class is not None:
            answer["label"] = self._label_of_class.lookup(tf.cast(class_id, tf.int64))
        return answer


def output_kind(num_classes, activation):
    """Returns what the outputs of a classifier mean.

    Returns:
        `"softmax"`: logits or probabilities of classes, of which one is right; `"sigmoid"`: of
        which several may be; `"binary"`: one probability; `"scores"`: regression, or any other
        activation.
    """
    if activation is keras.activations.sigmoid:
        return "binary" if num_classes == 1 else "sigmoid"
    if num_classes > 1 and activation in (keras.activations.softmax, keras.activations.linear):
        return "softmax"
    return "scores"


@contextlib.contextmanager
def _without_activation(dense):
    """Makes the last layer return logits instead of probabilities during tracing."""
    activation, dense.activation = dense.activation, keras.activations.linear
    try:
        yield
    finally:
        dense.activation = activation
