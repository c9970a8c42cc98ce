"""The signatures of an exported translation model."""

import tensorflow as tf

from roformer_tf.export.served_model import TEXTS, ServedModel

PAIRS_OF_IDS = tuple(
    tf.TensorSpec([None, None], tf.int32, name=f"{side}_{name}")
    for side in ("encoder", "decoder")
    for name in ("token_ids", "padding_mask")
)


class ServedSeq2SeqLM(ServedModel):
    """Serves translations of texts. The serving process must import TensorFlow Text.

    Args:
        task: `RoFormerSeq2SeqLM`; its sampler and its seed are saved too.
        preprocessor: `RoFormerSeq2SeqLMPreprocessor`.
        vocabulary_file: See `ServedModel`.
        name: str. Name of the module.

    Example:

    >>> from roformer_tf.export.served_seq_2_seq_lm import PAIRS_OF_IDS
    >>> [spec.name for spec in PAIRS_OF_IDS]
    ['encoder_token_ids', 'encoder_padding_mask', 'decoder_token_ids', 'decoder_padding_mask']
    """

    @property
    def signatures(self):
        """Dict of signature names and their `tf.function`."""
        return {"serving_default": self.texts, "token_ids": self.token_ids}

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Translates a batch of strings."""
        task, preprocessor = self._python.task, self._python.preprocessor
        # no sampler takes an empty batch: add an empty text
        count = tf.size(texts)
        texts = tf.concat([texts, tf.fill([tf.maximum(1 - count, 0)], "")], axis=0)
        inputs = preprocessor.generate_preprocess(texts)
        rows = task.generate_step(inputs, [preprocessor.tokenizer.end_token_id])
        return {"translations": preprocessor.generate_postprocess(rows)[:count]}

    @tf.function(input_signature=PAIRS_OF_IDS, autograph=False)
    def token_ids(
        self, encoder_token_ids, encoder_padding_mask, decoder_token_ids, decoder_padding_mask
    ):
        """Returns the logits of the next target token at every position."""
        inputs = {
            "encoder_token_ids": encoder_token_ids,
            "encoder_padding_mask": encoder_padding_mask,
            "decoder_token_ids": decoder_token_ids,
            "decoder_padding_mask": decoder_padding_mask,
        }
        return {"logits": self.outputs(inputs)}
