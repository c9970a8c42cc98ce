import keras
import keras_hub
import numpy as np

from roformer_tf.models.embeds_texts import EmbedsTexts, check_pooler
from roformer_tf.models.in_batch_contrastive import InBatchContrastive, nearest_is_positive
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.models.roformer_causal_lm import RoFormerCausalLM
from roformer_tf.models.roformer_masked_lm import language_model_head, token_loss
from roformer_tf.models.roformer_sim_preprocessor import RoFormerSimPreprocessor
from roformer_tf.models.roformer_task import check_not_empty
from roformer_tf.models.similarity_distillation import SimilarityDistillation


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSim(EmbedsTexts, RoFormerCausalLM):
    """RoFormer-Sim: vectors of texts by their meaning, and similar texts.

    One UniLM network does both. The source, segment 0, is seen from both sides, and its [CLS] vector goes through a
    linear pooler: the vector of the text. What says the same follows as segment 1, token by token.

    `fit` takes pairs of similar texts, `model.fit((firsts, seconds))`. The loss is that of the language model, from
    each text to the other, plus the in-batch contrastive loss of the vectors; or, to learn from another model,
    `model.compile(loss="distillation")` and `model.fit((firsts, seconds), (teacher.embed(firsts),
    teacher.embed(seconds)))`.

    Args:
        backbone: a `RoFormerBackbone` with `masking="unilm"` and `pooler="linear"`.
        preprocessor: a `RoFormerSimPreprocessor`, or `None` for token ids in place of strings.
        head_epsilon: float, epsilon of the layer norm in the head.
        **kwargs: of `keras.Model`.

    Call arguments:
        inputs: dictionary as of `RoFormerBackbone`.

    Returns:
        Dictionary of `"logits"` `(batch, length, vocabulary_size)` of the next token, and `"pooled_output"`
        `(batch, hidden_dim)`.

    Raises:
        ValueError: if the backbone is not UniLM or has no pooler.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
    ...     masking="unilm", pooler="linear",
    ... )
    >>> sim = roformer_tf.RoFormerSim(backbone, roformer_tf.RoFormerSimPreprocessor(tokenizer))
    >>> history = sim.fit((["天气好", "好天"], ["好天气", "天好"]), verbose=0)
    >>> sim.embed(["天气", "天"]).shape
    (2, 16)

    Reference: https://github.com/ZhuiyiTechnology/roformer-sim; UniLM, arXiv 1905.03197.
    """

    preprocessor_cls = RoFormerSimPreprocessor
    saved_masking = "unilm"
    needs_pooler = True

    def __init__(self, backbone, preprocessor=None, head_epsilon=1e-12, **kwargs):
        check_pooler(backbone, "RoFormerSim")
        if backbone.masking != "unilm":
            raise ValueError(
                "RoFormerSim needs a backbone with `masking='unilm'`. Received: a backbone with "
                f"masking={backbone.masking!r}"
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.head = language_model_head(backbone, head_epsilon)

        # === Functional model ===
        inputs = backbone.input
        outputs = backbone(inputs)
        outputs = {
            "logits": self.head(sequence_output(outputs)),
            "pooled_output": outputs["pooled_output"],
        }
        # past the parent's constructor, whose model has the logits alone
        super(RoFormerCausalLM, self).__init__(inputs=inputs, outputs=outputs, **kwargs)

        # === Config ===
        self.head_epsilon = head_epsilon

    def compile(
        self, optimizer="auto", loss="auto", *, weighted_metrics="auto", sampler="auto", **kwargs
    ):
        """Configures training and generation; see `keras_hub.models.CausalLM.compile`.

        Args:
            optimizer: of `keras.Model.compile`; `"auto"` is Adam with a learning rate of 2e-5.
            loss: `"auto"`: the language model's mean over the target's tokens, and `InBatchContrastive`;
                `"distillation"`: the same with `SimilarityDistillation` in place of the latter; or a dictionary of
                losses of `"logits"` and `"pooled_output"`.
            weighted_metrics: `"auto"`: share of the next tokens that are right and, with `InBatchContrastive`, of the
                rows whose nearest other row is their partner.
            sampler: of `generate` and `similar`; `"auto"` is the original's, top-p with p = 0.95.
            **kwargs: of `keras.Model.compile`, such as `loss_weights={"logits": 1.0, "pooled_output": 0.5}`.

        Raises:
            ValueError: if `loss` is another word.
        """
        if loss in ("auto", "distillation"):
            pooled = InBatchContrastive() if loss == "auto" else SimilarityDistillation()
            loss = {"logits": token_loss("auto"), "pooled_output": pooled}
        if not isinstance(loss, dict) or set(loss) - {"logits", "pooled_output"}:
            raise ValueError(
                "`loss` must be 'auto', 'distillation' or a dictionary of losses of 'logits' and 'pooled_output'. "
                f"Received: loss={loss!r}"
            )
        if weighted_metrics == "auto":
            weighted_metrics = {
                "logits": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
            }
            if isinstance(loss.get("pooled_output"), InBatchContrastive):
                nearest = keras.metrics.MeanMetricWrapper(nearest_is_positive, name="accuracy")
                weighted_metrics["pooled_output"] = [nearest]
        if sampler == "auto":
            sampler = keras_hub.samplers.TopPSampler(p=0.95)
        super().compile(
            optimizer=optimizer,
            loss=loss,
            weighted_metrics=weighted_metrics,
            sampler=sampler,
            **kwargs,
        )

    def similar(self, texts, n=100, k=20, max_length=128):
        """Texts that say the same: `n` are generated, and of the different ones the `k` nearest are kept.

        How they are drawn is the `sampler` of `compile`. With a seed of its own a new sampler draws the same texts
        again; from call to call it goes on.

        Args:
            texts: string or list of strings.
            n: positive integer, how many texts to generate for each.
            k: positive integer, how many to keep at most.
            max_length: positive integer, the most tokens of text and new text together.

        Returns:
            For each text a list of `(similar text, similarity)`, the most similar first: the similarity is the cosine
            of `embed`. Repetitions, and the text itself, are left out. For a single string that string's list alone.

        Raises:
            ValueError: if there is no text, a text has no room in `max_length`, or `n` or `k` is no positive integer.
            TypeError: if a text is no string.

        Example:

        >>> import roformer_tf
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
        ...     masking="unilm", pooler="linear",
        ... )
        >>> sim = roformer_tf.RoFormerSim(backbone, roformer_tf.RoFormerSimPreprocessor(tokenizer))
        >>> found = sim.similar("天气好", n=8, k=3, max_length=12)
        >>> len(found) <= 3
        True

        Reference: `gen_synonyms` of `test/generate.py` in the original repository.
        """
        for name, value in {"n": n, "k": k}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
        check_not_empty(texts)
        single = isinstance(texts, str | bytes)
        results = []
        for text in [texts] if single else texts:
            drawn = self.generate([text] * n, max_length=max_length)
            # the text as it would be generated: in lower case, with its blanks in order
            same = self.preprocessor.tokenizer.detokenize(self.preprocessor.tokenizer([text]))[0]
            others = [t for t in dict.fromkeys(drawn) if t not in ("", text, same)]
            vectors = self.embed([text, *others])
            cosines = vectors[1:] @ vectors[0]
            nearest = np.argsort(-cosines, kind="stable")[:k]
            results.append([(others[i], float(cosines[i])) for i in nearest])
        return results[0] if single else results
