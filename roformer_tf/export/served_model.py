"""Base classes of exported models."""

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
    """Wraps a task as a `tf.Module` whose signatures use core TensorFlow ops only.

    Saves only the task's weights and tokenizer: no optimizer, no metrics, no Keras objects.

    Args:
        task: task or backbone of this package.
        preprocessor: preprocessor of this package.
        vocabulary_file: path of a text file with the tokens, saved for users of token ids.
        name: str. Name of the module.

    Example:

    >>> from roformer_tf.export.served_model import TOKEN_IDS
    >>> [spec.name for spec in TOKEN_IDS]
    ['token_ids', 'segment_ids', 'padding_mask']
    """

    def __init__(self, task, preprocessor, vocabulary_file, name=None):
        super().__init__(name)
        # In a plain object, which TensorFlow does not look into: a model that it saves brings its
        # optimizer along.
        self._python = types.SimpleNamespace(task=task, preprocessor=preprocessor)
        self.weights = {weight.path: weight.value for weight in task.weights}
        self.tokenizer = preprocessor.tokenizer.graph
        self.vocabulary_file = tf.saved_model.Asset(vocabulary_file)
        if hasattr(task, "sampler"):
            # saved too, so each call continues the random draws of the call before
            self.seeds = [variable.value for variable in task.sampler.variables]

    def outputs(self, inputs):
        """Runs the model in inference; floats become float32."""
        outputs = self._python.task(inputs, training=False)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), outputs)


class ServedAnswers(ServedModel):
    r"""Serves texts, pairs of texts and token ids with one method, `answer`, of the subclass.

    Args:
        task, preprocessor, vocabulary_file, name: See `ServedModel`.

    Example:

    >>> import os, tempfile
    >>> import roformer_tf
    >>> from roformer_tf.export.served_backbone import ServedBackbone
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> path = os.path.join(tempfile.mkdtemp(), "vocabulary.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("".join(f"{token}\n" for token in vocabulary))
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    >>> served = ServedBackbone(backbone, preprocessor, path)
    >>> sorted(served.texts(tf.constant(["天气"])))
    ['embedding', 'padding_mask', 'sequence_output']
    """

    @property
    def signatures(self):
        """Dict of signature names and their `tf.function`."""
        return {
            "serving_default": self.texts,
            "pairs": self.pairs,
            "token_ids": self.token_ids,
        }

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Answers a batch of strings."""
        return self.answer(self.prepare(texts))

    @tf.function(input_signature=PAIRS, autograph=False)
    def pairs(self, first, second):
        """Answers a batch of pairs of strings."""
        return self.answer(self.prepare(checked_pairs(first, second)))

    @tf.function(input_signature=TOKEN_IDS, autograph=False)
    def token_ids(self, token_ids, segment_ids, padding_mask):
        """Answers a batch of token ids."""
        return self.answer(
            {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
        )

    def prepare(self, texts):
        """Returns the model inputs of strings, or of a tuple of two."""
        # not a call: the preprocessor of another task would add labels
        return self._python.preprocessor.pack(texts)

    def answer(self, inputs):
        """Returns a dict of named outputs for model inputs; floats are float32."""
        raise NotImplementedError


def checked_pairs(first, second):
    """Returns the pair as a tuple, and checks that both have the same number of texts."""
    check = tf.debugging.assert_equal(
        tf.size(first), tf.size(second), "`first` and `second` must have the same number of texts."
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(first), tf.identity(second)
