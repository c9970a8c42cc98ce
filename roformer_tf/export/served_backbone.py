"""The signatures of an exported backbone."""

import tensorflow as tf

from roformer_tf.export.served_model import ServedAnswers
from roformer_tf.layers import MeanPooling

EMBEDDINGS = ("mean", "cls", "pooler")


class ServedBackbone(ServedAnswers):
    """Serves hidden states and an embedding of each text.

    Args:
        task: `RoFormerBackbone`.
        preprocessor: See `ServedModel`.
        vocabulary_file: See `ServedModel`.
        embedding: `"mean"`, `"cls"` or `"pooler"`.
        normalize: bool. Whether to scale `embedding` to length 1.
        name: str. Name of the module.

    Example:

    >>> from roformer_tf.export.served_backbone import EMBEDDINGS
    >>> EMBEDDINGS
    ('mean', 'cls', 'pooler')
    """

    def __init__(
        self, task, preprocessor, vocabulary_file, embedding="mean", normalize=False, name=None
    ):
        super().__init__(task, preprocessor, vocabulary_file, name)
        self._embedding = embedding
        self._normalize = normalize
        self._python.mean_pooling = MeanPooling(dtype="float32")

    def answer(self, inputs):
        """Returns a dict of named outputs; see `export_saved_model`."""
        answer = self.outputs(inputs)
        if not isinstance(answer, dict):
            answer = {"sequence_output": answer}
        hidden, mask = answer["sequence_output"], inputs["padding_mask"]
        if self._embedding == "pooler":
            embedding = answer["pooled_output"]
        elif self._embedding == "cls":
            embedding = hidden[:, 0]
        else:
            embedding = self._python.mean_pooling(hidden, mask)
        if self._normalize:
            embedding = tf.math.l2_normalize(embedding, axis=-1)
        return {**answer, "padding_mask": mask, "embedding": embedding}
