"""A causal or prefix language model as a SavedModel answers it."""

import tensorflow as tf

from roformer_tf.export.served_answers import ServedAnswers
from roformer_tf.export.served_model import PAIRS, TEXTS, checked_pairs

GENERATE = (*TEXTS, tf.TensorSpec([], tf.int32, name="max_length"))


class ServedCausalLM(ServedAnswers):
    """How likely the model finds texts: `log_likelihood`, `num_tokens`, `perplexity`; `logits` for token ids.

    And `generate`: what it makes of texts, by the sampler that the task has when it is exported.

    Args:
        task: `RoFormerCausalLM`.
        preprocessor: `RoFormerCausalLMPreprocessor`.
        vocabulary_file: as of `ServedModel`.
        name: of the module.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.export.served_causal_lm import log_likelihood
    >>> logits = tf.math.log([[[0.25, 0.75], [0.5, 0.5]]])
    >>> round(float(tf.exp(log_likelihood(logits, tf.constant([[1, 0]]), tf.ones([1, 2])))[0]), 6)
    0.375
    """

    def __init__(self, task, preprocessor, vocabulary_file, name=None):
        super().__init__(task, preprocessor, vocabulary_file, name)
        # what the sampler draws goes on from call to call
        self.seeds = [variable.value for variable in task.sampler.variables]

    @property
    def signatures(self):
        """Dict from the name of each signature to its `tf.function`."""
        return {**super().signatures, "generate": self.generate}

    @tf.function(input_signature=GENERATE, autograph=False)
    def generate(self, texts, max_length):
        """What `RoFormerCausalLM.generate` gives for a batch of strings."""
        task, preprocessor = self._python.task, self._python.preprocessor
        unilm = task.backbone.masking == "unilm"
        prompts = (texts, tf.fill([tf.size(texts)], "")) if unilm else texts
        prompts = preprocessor.generate_preprocess(prompts, sequence_length=max_length)
        rows = task.generate_step(prompts, [preprocessor.tokenizer.end_token_id], 0)
        if unilm:
            new = tf.cast(rows["padding_mask"], tf.int32) * (1 - prompts["padding_mask"])
            rows = {**rows, "padding_mask": new}
        return {"texts": preprocessor.generate_postprocess(rows)}

    @tf.function(input_signature=TEXTS, autograph=False)
    def texts(self, texts):
        """Scores of a batch of strings."""
        return self._score(texts)

    @tf.function(input_signature=PAIRS, autograph=False)
    def pairs(self, first, second):
        """Scores of the second texts, given the first ones."""
        return self._score(checked_pairs(first, second))

    def answer(self, inputs):
        """Logits of the next token at every position."""
        return {"logits": self.outputs(inputs)}

    def _score(self, texts):
        inputs, targets, weights = self._python.preprocessor(texts)
        total = log_likelihood(self.outputs(inputs), targets, weights)
        num_tokens = tf.reduce_sum(weights, axis=-1)
        return {
            "log_likelihood": total,
            "num_tokens": tf.cast(num_tokens, tf.int32),
            "perplexity": tf.exp(-total / tf.maximum(num_tokens, 1.0)),
        }


def log_likelihood(logits, targets, weights):
    """Sum over the positions of weight × ln p(target), float32 `(batch,)`."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    # a long text adds thousands of terms: in float64, as `RoFormerCausalLM.score` does
    return tf.cast(-tf.reduce_sum(tf.cast(loss * weights, tf.float64), axis=-1), tf.float32)
