import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.models.batches import check_batch_size, string_tensors
from roformer_tf.models.generates_texts import GeneratesTexts
from roformer_tf.models.roformer_backbone import RoFormerBackbone, sequence_output
from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.models.roformer_masked_lm import language_model_head, token_loss
from roformer_tf.models.roformer_task import RoFormerTask, check_not_empty


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerCausalLM(GeneratesTexts, RoFormerTask, keras_hub.models.CausalLM):
    """Causal (RoFormer-GPT) or prefix (UniLM, RoFormer-Sim) language model: logits of the next token.

    `generate` goes on from a prompt, by the `sampler` of `compile`; `score` says how likely a text is.

    Args:
        backbone: a `RoFormerBackbone` with `masking="causal"` or `"unilm"`.
        preprocessor: a `RoFormerCausalLMPreprocessor`, or `None` for token ids in place of strings.
        head_epsilon: float, epsilon of the layer norm in the head.
        **kwargs: of `keras.Model`.

    Call arguments:
        inputs: dictionary as of `RoFormerBackbone`.

    Returns:
        Logits `(batch, length, vocabulary_size)`; those at position i are of token i + 1.

    Raises:
        ValueError: if the backbone sees the future (`masking="bidirectional"`).

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
    ...     masking="causal",
    ... )
    >>> causal_lm = roformer_tf.RoFormerCausalLM(backbone)
    >>> ids = np.array([[2, 15, 31, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> tuple(causal_lm(inputs).shape)
    (1, 4, 100)
    >>> scores = causal_lm.score(inputs)
    >>> scores["num_tokens"].tolist()
    [3]

    Reference: `application="lm"` and `"unilm"` of bert4keras' `models.py`.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerCausalLMPreprocessor
    saved_masking = "causal"

    def __init__(self, backbone, preprocessor=None, head_epsilon=1e-12, **kwargs):
        if backbone.masking == "bidirectional":
            raise ValueError(
                "A causal language model needs a backbone with `masking='causal'` or `masking='unilm'`. "
                "Received: a backbone with masking='bidirectional'"
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.head = language_model_head(backbone, head_epsilon)

        # === Functional model ===
        inputs = backbone.input
        outputs = self.head(sequence_output(backbone(inputs)))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        # === Config ===
        self.head_epsilon = head_epsilon

    def compile(self, optimizer="auto", loss="auto", *, jit_compile="auto", **kwargs):
        """See `keras_hub.models.CausalLM.compile`.

        The default loss is the mean over the tokens that count. `generate` uses XLA only if `jit_compile` is `True`, as
        XLA makes a program for each size of its batches.
        """
        super().compile(
            optimizer=optimizer, loss=token_loss(loss), jit_compile=jit_compile, **kwargs
        )

    def score(self, inputs, batch_size=32):
        """How likely the model finds texts.

        Args:
            inputs: string, list of strings, or a tuple `(sources, targets)` of two lists, of which the targets are
                scored; or model inputs when the task has no preprocessor (every token but the first is scored).
            batch_size: positive integer.

        Returns:
            Dictionary of NumPy arrays, one entry a text: `"log_likelihood"` (sum of natural logarithms over the scored
            tokens), `"num_tokens"`, and `"perplexity"`, exp(-log_likelihood / num_tokens).

        Raises:
            ValueError: if there is no text.
            TypeError: if an example is no string.
        """
        check_not_empty(inputs)
        check_batch_size(batch_size)
        if self.preprocessor is not None:
            texts = string_tensors([inputs] if isinstance(inputs, str | bytes) else inputs)
            # not a call, which gives what a model is trained on: for RoFormerSim each pair twice
            inputs, targets, weights = self.preprocessor.next_tokens(texts)
        else:
            ids, mask = (np.asarray(inputs[k]) for k in ("token_ids", "padding_mask"))
            targets, weights = ids[:, 1:], mask[:, 1:]
            inputs = {k: np.asarray(v)[:, :-1] for k, v in inputs.items()}
        inputs = {k: ops.convert_to_numpy(v) for k, v in inputs.items()}
        targets, weights = ops.convert_to_numpy(targets), ops.convert_to_numpy(weights)

        log_likelihood = []
        for start in range(0, len(targets), batch_size):
            part = slice(start, start + batch_size)
            # KerasHub's own would take the inputs for strings and preprocess them
            logits = keras.Model.predict_on_batch(self, {k: v[part] for k, v in inputs.items()})
            logits = logits["logits"] if isinstance(logits, dict) else logits
            logits = np.asarray(logits, "float32")
            peak = logits.max(-1, keepdims=True)
            log_sum = np.log(np.exp(logits - peak).sum(-1, dtype="float64")) + peak[..., 0]
            chosen = np.take_along_axis(logits, targets[part][..., None], -1)[..., 0]
            log_likelihood.append(((chosen - log_sum) * weights[part]).sum(-1))
        log_likelihood = np.concatenate(log_likelihood)
        num_tokens = weights.sum(-1).astype("int64")
        return {
            "log_likelihood": log_likelihood,
            "num_tokens": num_tokens,
            "perplexity": np.exp(-log_likelihood / np.maximum(num_tokens, 1)),
        }

    def get_config(self):
        return {**super().get_config(), "head_epsilon": self.head_epsilon}
