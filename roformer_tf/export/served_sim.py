"""The signatures of an exported RoFormer-Sim."""

import tensorflow as tf

from roformer_tf.export.served_model import TEXTS, TOKEN_IDS, ServedModel
from roformer_tf.models.in_batch_contrastive import unit_vectors

SIMILAR = (
    *TEXTS,
    tf.TensorSpec([], tf.int32, name="n"),
    tf.TensorSpec([], tf.int32, name="k"),
    tf.TensorSpec([], tf.int32, name="max_length"),
)


class ServedSim(ServedModel):
    """Serves embeddings of texts, and generates similar texts.

    Args:
        task: `RoFormerSim`; its sampler and its seed are saved too.
        preprocessor: `RoFormerSimPreprocessor`.
        vocabulary_file: See `ServedModel`.
        name: str. Name of the module.

    Example:

    >>> from roformer_tf.export.served_sim import SIMILAR
    >>> [spec.name for spec in SIMILAR]
    ['texts', 'n', 'k', 'max_length']
    """

    @property
    def signatures(self):
        """Dict of signature names and their `tf.function`."""
        return {
            "serving_default": self.texts,
            "embed": self.texts,
            "similar": self.similar,
            "token_ids": self.token_ids,
        }

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Returns embeddings of length 1 for a batch of strings."""
        return {"embedding": self._embed(texts)}

    @tf.function(input_signature=SIMILAR, autograph=False)
    def similar(self, texts, n, k, max_length):
        """Generates `n` texts for each string, returns the `k` nearest; see `RoFormerSim.similar`."""
        task, preprocessor = self._python.task, self._python.preprocessor
        sources = tf.repeat(texts, n)
        prompts = preprocessor.generate_preprocess(
            (sources, tf.fill([tf.size(sources)], "")), sequence_length=max_length
        )
        rows = task.generate_step(prompts, [preprocessor.tokenizer.end_token_id])
        new = tf.cast(rows["padding_mask"], tf.int32) * (1 - prompts["padding_mask"])
        drawn = preprocessor.generate_postprocess({**rows, "padding_mask": new})
        same = preprocessor.tokenizer.detokenize(preprocessor.tokenizer(texts))

        vectors = tf.reshape(self._embed(drawn), [tf.size(texts), n, task.backbone.hidden_dim])
        similarities = tf.linalg.matvec(vectors, self._embed(texts))
        drawn = tf.reshape(drawn, [-1, n])
        with tf.device("CPU"):
            before = tf.linalg.band_part(tf.ones([n, n]), -1, 0) - tf.eye(n) > 0
            repeated = tf.reduce_any((drawn[:, :, None] == drawn[:, None, :]) & before, axis=-1)
            own = (drawn == texts[:, None]) | (drawn == same[:, None]) | (drawn == "")
            left_out = tf.where(repeated | own, -2.0, similarities)
            best, indices = tf.math.top_k(left_out, tf.minimum(k, n))
            found = best > -2.0
            return {
                "texts": tf.where(found, tf.gather(drawn, indices, batch_dims=1), ""),
                "similarities": tf.where(found, best, 0.0),
            }

    @tf.function(input_signature=TOKEN_IDS, autograph=False)
    def token_ids(self, token_ids, segment_ids, padding_mask):
        """Returns the model's logits of the next token and its pooled vectors."""
        return self.outputs(
            {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
        )

    def _embed(self, texts):
        outputs = self._python.task.backbone(self._python.preprocessor.pack(texts), training=False)
        return unit_vectors(tf.cast(outputs["pooled_output"], tf.float32))
