"""What all exported models share: weights and tokenizer."""

import types

import tensorflow as tf

TEXTS = (tf.TensorSpec([None], tf.string, name="texts"),)
PAIRS = (
    tf.TensorSpec([None], tf.string, name="first"),
    tf.TensorSpec([None], tf.string, name="second"),
)
TOKEN_IDS = tuple(
    tf.TensorSpec([None, None], tf.int32, name=name)
    for name in ("token_ids", "segment_ids", "padding_mask")
)


class ServedModel(tf.Module):
    """A task in the form that `tf.saved_model.save` writes: what it answers are core TensorFlow ops.

    Only the task's weights and its tokenizer are saved: no optimizer, no metrics, nothing of Keras.

    Args:
        task: task or backbone of this package.
        preprocessor: preprocessor of this package.
        vocabulary_file: path of a text file with the tokens, copied along for the reader of token ids.
        name: of the module.

    Example:

    >>> from roformer_tf.export.served_model import TOKEN_IDS
    >>> [spec.name for spec in TOKEN_IDS]
    ['token_ids', 'segment_ids', 'padding_mask']
    """

    def __init__(self, task, preprocessor, vocabulary_file, name=None):
        super().__init__(name)
        # In a plain object, which TensorFlow does not look into: a model that it saves brings its optimizer along.
        self._python = types.SimpleNamespace(task=task, preprocessor=preprocessor)
        self.weights = {weight.path: weight.value for weight in task.weights}
        self.tokenizer = preprocessor.tokenizer.graph
        self.vocabulary_file = tf.saved_model.Asset(vocabulary_file)

    def outputs(self, inputs):
        """What the model itself gives for model inputs, in inference."""
        outputs = self._python.task(inputs, training=False)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), outputs)


def checked_pairs(first, second):
    """The pair as a tuple, of as many first texts as second ones."""
    check = tf.debugging.assert_equal(
        tf.size(first), tf.size(second), "`first` and `second` must have as many texts each."
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(first), tf.identity(second)
