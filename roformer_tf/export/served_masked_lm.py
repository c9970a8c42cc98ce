"""The signatures of an exported masked language model."""

import tensorflow as tf

from roformer_tf.export.served_model import TEXTS, TOKEN_IDS, ServedModel
from roformer_tf.models.fill_mask import tokens_by_id, top_tokens

WITH_POSITIONS = (*TOKEN_IDS, tf.TensorSpec([None, None], tf.int32, name="mask_positions"))


class ServedMaskedLM(ServedModel):
    """Serves the most probable tokens for every `[MASK]` in a text.

    Args:
        task: `RoFormerMaskedLM`.
        preprocessor: `RoFormerMaskedLMPreprocessor`.
        vocabulary_file: See `ServedModel`.
        top_k: int. Number of tokens for each mask.
        name: str. Name of the module.

    Example:

    >>> from roformer_tf.export.served_masked_lm import WITH_POSITIONS
    >>> [spec.name for spec in WITH_POSITIONS]
    ['token_ids', 'segment_ids', 'padding_mask', 'mask_positions']
    """

    def __init__(self, task, preprocessor, vocabulary_file, top_k=5, name=None):
        super().__init__(task, preprocessor, vocabulary_file, name)
        self._top_k = top_k
        tokens = tokens_by_id(preprocessor.tokenizer, task.backbone.vocabulary_size)
        with tf.device("CPU"):
            self._tokens = tf.constant([token.encode() for token in tokens])

    @property
    def signatures(self):
        """Dict of signature names and their `tf.function`."""
        return {"serving_default": self.texts, "token_ids": self.token_ids}

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Returns tokens, ids and probabilities for the masks of a batch of strings."""
        # Keras 3.15 cannot gather positions of an empty batch: add an empty text
        count = tf.size(texts)
        texts = tf.concat([texts, tf.fill([tf.maximum(1 - count, 0)], "")], axis=0)
        inputs, found = self._python.preprocessor.pack_masks(texts)
        ids, probabilities = top_tokens(self.outputs(inputs), self._top_k)
        with tf.device("CPU"):
            tokens = tf.gather(self._tokens, ids)
            each = found[:, :, tf.newaxis]
            answer = {
                "tokens": tf.where(each, tokens, ""),
                "ids": tf.where(each, ids, -1),
                "probabilities": tf.where(each, probabilities, 0.0),
                "mask_positions": tf.where(found, inputs["mask_positions"], -1),
            }
            return {name: value[:count] for name, value in answer.items()}

    @tf.function(input_signature=WITH_POSITIONS, autograph=False)
    def token_ids(self, token_ids, segment_ids, padding_mask, mask_positions):
        """Returns the logits over the vocabulary at `mask_positions`."""
        logits = self.outputs(
            {
                "token_ids": token_ids,
                "segment_ids": segment_ids,
                "padding_mask": padding_mask,
                "mask_positions": mask_positions,
            }
        )
        return {"logits": logits}
