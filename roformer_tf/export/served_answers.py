"""The three ways to ask an exported model: texts, pairs of texts, token ids."""

import tensorflow as tf

from roformer_tf.export.served_model import PAIRS, TEXTS, TOKEN_IDS, ServedModel, checked_pairs


class ServedAnswers(ServedModel):
    r"""A model that answers alike for texts, pairs of texts and token ids; subclasses define `answer`.

    Args:
        task, preprocessor, vocabulary_file, name: as of `ServedModel`.

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
        """Dict from the name of each signature to its `tf.function`."""
        return {
            "serving_default": self.texts,
            "pairs": self.pairs,
            "token_ids": self.token_ids,
        }

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Answers for a batch of strings."""
        return self.answer(self.prepare(texts))

    @tf.function(input_signature=PAIRS, autograph=False)
    def pairs(self, first, second):
        """Answers for a batch of pairs of strings."""
        return self.answer(self.prepare(checked_pairs(first, second)))

    @tf.function(input_signature=TOKEN_IDS, autograph=False)
    def token_ids(self, token_ids, segment_ids, padding_mask):
        """Answers for a batch of rows of token ids."""
        return self.answer(
            {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
        )

    def prepare(self, texts):
        """Model inputs for strings, or for a tuple of two."""
        # not a call: the preprocessor of another task would add labels
        return self._python.preprocessor.pack(texts)

    def answer(self, inputs):
        """Dict of the named outputs for model inputs; floats are float32."""
        raise NotImplementedError
