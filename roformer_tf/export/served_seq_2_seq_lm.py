"""A translation model as a SavedModel answers it."""

import tensorflow as tf

from roformer_tf.export.served_model import TEXTS, ServedModel

PAIRS_OF_IDS = tuple(
    tf.TensorSpec([None, None], tf.int32, name=f"{side}_{name}")
    for side in ("encoder", "decoder")
    for name in ("token_ids", "padding_mask")
)


class ServedSeq2SeqLM(ServedModel):
    """Translations of texts. The tokenizer is of TensorFlow Text, which the process that reads this must have loaded.

    Args:
        task: `RoFormerSeq2SeqLM`; its sampler, with its seed, is saved along.
        preprocessor: `RoFormerSeq2SeqLMPreprocessor`.
        vocabulary_file: as of `ServedModel`.
        name: of the module.

    Example:

    >>> from roformer_tf.export.served_seq_2_seq_lm import PAIRS_OF_IDS
    >>> [spec.name for spec in PAIRS_OF_IDS]
    ['encoder_token_ids', 'encoder_padding_mask', 'decoder_token_ids', 'decoder_padding_mask']
    """

    def __init__(self, task, preprocessor, vocabulary_file, name=None):
        super().__init__(task, preprocessor, vocabulary_file, name)
        # what the sampler draws goes on from call to call
        self.seeds = [variable.value for variable in task.sampler.variables]

    @property
    def signatures(self):
        """Dict from the name of each signature to its `tf.function`."""
        return {"serving_default": self.texts, "token_ids": self.token_ids}

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Translations of a batch of strings."""
        task, preprocessor = self._python.task, self._python.preprocessor
        # no sampler takes a batch of none: an empty text stands in for it
        count = tf.size(texts)
        texts = tf.concat([texts, tf.fill([tf.maximum(1 - count, 0)], "")], axis=0)
        inputs = preprocessor.generate_preprocess(texts)
        rows = task.generate_step(inputs, [preprocessor.tokenizer.end_token_id])
        return {"translations": preprocessor.generate_postprocess(rows)[:count]}

    @tf.function(input_signature=PAIRS_OF_IDS, autograph=False)
    def token_ids(
        self, encoder_token_ids, encoder_padding_mask, decoder_token_ids, decoder_padding_mask
    ):
        """Logits of the next token of the target at every place."""
        inputs = {
            "encoder_token_ids": encoder_token_ids,
            "encoder_padding_mask": encoder_padding_mask,
            "decoder_token_ids": decoder_token_ids,
            "decoder_padding_mask": decoder_padding_mask,
        }
        return {"logits": self.outputs(inputs)}
