import keras
import keras_hub

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.batches import text_batch
from roformer_tf.models.in_batch_contrastive import InBatchContrastive, nearest_is_positive
from roformer_tf.models.labels import ranked
from roformer_tf.models.roformer_backbone import check_pooler
from roformer_tf.models.roformer_causal_lm import RoFormerCausalLM
from roformer_tf.models.roformer_masked_lm import token_loss
from roformer_tf.models.roformer_preprocessor import tokenize
from roformer_tf.models.roformer_sim_preprocessor import RoFormerSimPreprocessor
from roformer_tf.models.similarity_distillation import SimilarityDistillation


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSim(RoFormerCausalLM):
    """RoFormer-Sim: vectors of texts by their meaning, and paraphrases.

    One UniLM network does both. The source, segment 0, is read in both directions, and a linear
    pooler turns its [CLS] vector into the vector of the text. A paraphrase follows as segment 1,
    token by token.

    `fit` trains on pairs of similar texts, `model.fit((first, second))`. The loss is that of the
    language model, from each text to the other, plus the in-batch contrastive loss of the vectors.
    To learn from another model, call `model.compile(loss="distillation")` and
    `model.fit((first, second), (teacher.embed(first), teacher.embed(second)))`.

    Args:
        backbone: a `RoFormerBackbone` with `masking="unilm"` and `pooler="linear"`.
        preprocessor: a `RoFormerSimPreprocessor`, or `None` to take token ids.
        head_epsilon: float. Epsilon of the layer norm in the head.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`.

    Returns:
        Dictionary of `"logits"` `(batch, length, vocabulary_size)` of the next token, and
        `"pooled_output"` `(batch, hidden_dim)`.

    Raises:
        ValueError: If the backbone is not UniLM or has no pooler.

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
    >>> len(sim.similar("天气好", n=8, k=3, max_length=12)) <= 3
    True

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
        super().__init__(backbone, preprocessor, head_epsilon, **kwargs)

    def compute_outputs(self, inputs, training=None):
        outputs = self.backbone(inputs, training=training)
        logits = self.head(outputs["sequence_output"], training=training)
        return {"logits": logits, "pooled_output": outputs["pooled_output"]}

    def compile(
        self, optimizer="auto", loss="auto", *, weighted_metrics="auto", sampler="auto", **kwargs
    ):
        """Configures training and generation; see `keras_hub.models.CausalLM.compile`.

        Args:
            optimizer: See `keras.Model.compile`; `"auto"` is Adam with a learning rate of 2e-5.
            loss: `"auto"` is the language model's mean over the target's tokens, and
                `InBatchContrastive`. `"distillation"` replaces the latter by
                `SimilarityDistillation`. Or a dictionary of losses of `"logits"` and
                `"pooled_output"`.
            weighted_metrics: `"auto"` is the share of next tokens that are right and, with
                `InBatchContrastive`, of texts whose nearest other text is their partner.
            sampler: Sampler of `generate` and `similar`; `"auto"` is the original's, top-p with
                p = 0.95.
            **kwargs: Arguments of `keras.Model.compile`, such as
                `loss_weights={"logits": 1.0, "pooled_output": 0.5}`.

        Raises:
            ValueError: If `loss` is another string, or has other keys.
        """
        if loss in ("auto", "distillation"):
            pooled = InBatchContrastive() if loss == "auto" else SimilarityDistillation()
            loss = {"logits": token_loss("auto"), "pooled_output": pooled}
        if not isinstance(loss, dict) or set(loss) - {"logits", "pooled_output"}:
            raise ValueError(
                "`loss` must be 'auto', 'distillation' or a dictionary of losses of 'logits' and "
                f"'pooled_output'. Received: loss={loss!r}"
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

    def run_on(self, texts):
        super().run_on(texts)
        self.embed(texts)

    def similar(self, texts, n=100, k=20, max_length=128):
        """Generates `n` paraphrases of each text and returns the `k` nearest.

        The `sampler` passed to `compile` draws them. With a seed, a new sampler draws the same
        texts again, but the next call to it draws others.

        Args:
            texts: string or list of strings.
            n: int. Number of texts to generate for each.
            k: int. Maximum number of texts to return for each.
            max_length: int. Maximum number of tokens of text and paraphrase together.

        Returns:
            For each text a list of `(paraphrase, similarity)`, the most similar first. The
            similarity is the cosine of the vectors of `embed`. Repetitions, and the text itself,
            are left out. For a single string its list alone.

        Raises:
            ValueError: If there is no text, a text leaves no room in `max_length`, or `n` or `k` is
                not positive.
            TypeError: If a text is not a string.

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
        check_positive_integer("n", n)
        check_positive_integer("k", k)
        texts, is_single = text_batch(texts)
        tokenizer, results = self.preprocessor.tokenizer, []
        for text in texts.numpy():
            text = text.decode("utf-8", "replace")
            drawn = self.generate([text] * n, max_length=max_length)
            # The text as it would be generated: in lower case, and with normalized blanks.
            same = tokenizer.detokenize(tokenize(tokenizer, [text]))[0]
            others = [t for t in dict.fromkeys(drawn) if t not in ("", text, same)]
            vectors = self.embed([text, *others])
            results.append(ranked(others, vectors[1:] @ vectors[0], k))
        return results[0] if is_single else results
