"""The signatures of an exported causal or UniLM language model."""

import tensorflow as tf

from roformer_tf.export.served_model import PAIRS, TEXTS, ServedAnswers, checked_pairs

GENERATE = (*TEXTS, tf.TensorSpec([], tf.int32, name="max_length"))


class ServedCausalLM(ServedAnswers):
    """Serves scores of texts, `logits` for token ids, and generation.

    Scores are `log_likelihood`, `num_tokens` and `perplexity`. `generate` uses the sampler that the
    task has when it is exported.

    Args:
        task: `RoFormerCausalLM`.
        preprocessor: `RoFormerCausalLMPreprocessor`.
        vocabulary_file: See `ServedModel`.
        name: str. Name of the module.

    Example:

    >>> import tensorflow as tf
    >>> from roformer_tf.export.served_causal_lm import log_likelihood
    >>> logits = tf.math.log([[[0.25, 0.75], [0.5, 0.5]]])
    >>> round(float(tf.exp(log_likelihood(logits, tf.constant([[1, 0]]), tf.ones([1, 2])))[0]), 6)
    0.375
    """

    @property
    def signatures(self):
        """Dict of signature names and their `tf.function`."""
        return {**super().signatures, "generate": self.generate}

    @tf.function(input_signature=GENERATE, autograph=False)
    def generate(self, texts, max_length):
        """Generates for a batch of strings, like `RoFormerCausalLM.generate`."""
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
        """Scores a batch of strings."""
        return self._score(texts)

    @tf.function(input_signature=PAIRS, autograph=False)
    def pairs(self, first, second):
        """Scores the second texts, given the first ones."""
        return self._score(checked_pairs(first, second))

    def answer(self, inputs):
        """Returns the logits of the next token at every position."""
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
    """Sums weight × ln p(target) over the positions; float32 `(batch,)`."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    # a long text adds thousands of terms: in float64, as `RoFormerCausalLM.score` does
    return tf.cast(-tf.reduce_sum(tf.cast(loss * weights, tf.float64), axis=-1), tf.float32)
