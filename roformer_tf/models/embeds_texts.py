import keras
import numpy as np
from keras import ops

from roformer_tf.models.batches import check_batch_size, string_tensors
from roformer_tf.models.roformer_task import check_not_empty
from roformer_tf.models.unit_vectors import unit_vectors


class EmbedsTexts:
    """Mixin of the tasks whose backbone has a pooler: the vectors of texts."""

    def embed(self, texts, normalize=True, batch_size=32):
        """The vectors of texts: the pooled [CLS] vector of `[CLS] text [SEP]`.

        Args:
            texts: string, or list or array of strings. A text is cut to the preprocessor's `sequence_length`.
            normalize: whether the vectors have length 1, so that the products of vectors are cosines.
            batch_size: positive integer.

        Returns:
            float32 NumPy array `(texts, hidden_dim)`, or `(hidden_dim,)` for a single string.

        Raises:
            ValueError: if there is no text, the task has no preprocessor, or `batch_size` is not positive.
            TypeError: if a text is no string.

        Reference: `test/retrieval.py` of the repository of RoFormer-Sim.
        """
        check_not_empty(texts)
        check_batch_size(batch_size)
        if self.preprocessor is None:
            raise ValueError(
                "The model has no preprocessor, so it knows no strings. Set one: "
                f"`model.preprocessor = {self.preprocessor_cls.__name__}(tokenizer)`."
            )
        single = isinstance(texts, str | bytes)
        texts = [texts] if single else list(texts) if isinstance(texts, tuple) else texts
        texts = string_tensors(texts).numpy()
        if not self.backbone.compiled and keras.backend.backend() == "tensorflow":
            # batches differ in length, and XLA, Keras' choice on a GPU, would compile each anew
            self.backbone.jit_compile = False
        vectors = np.empty((len(texts), self.backbone.hidden_dim), "float32")
        # texts of similar lengths together, which leaves little padding
        order = np.argsort([len(text) for text in texts], kind="stable")
        for rows in np.split(order, range(batch_size, len(order), batch_size)):
            inputs = self.preprocessor.pack(texts[rows])
            inputs = {name: np.asarray(value) for name, value in inputs.items()}
            vectors[rows] = self.backbone.predict_on_batch(inputs)["pooled_output"]
        if normalize:
            vectors = ops.convert_to_numpy(unit_vectors(ops.convert_to_tensor(vectors)))
        return vectors[0] if single else vectors


def check_pooler(backbone, task):
    """Refuses a backbone that has no vector for a text."""
    if backbone.pooler is None:
        raise ValueError(
            f"{task} needs a backbone with a pooler: make it with `pooler='linear'`. Received: a backbone with "
            "pooler=None"
        )
