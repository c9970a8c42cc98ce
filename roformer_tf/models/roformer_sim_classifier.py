import keras
import keras_hub
from keras import ops

from roformer_tf.models.grouped_crossentropy import GroupedCrossentropy, grouped_accuracy
from roformer_tf.models.labels import check_class_labels, class_weights
from roformer_tf.models.roformer_backbone import (
    TEXT_INPUTS,
    RoFormerBackbone,
    check_pooler,
    head_dense,
    pooled_positions,
)
from roformer_tf.models.roformer_sim_classifier_preprocessor import (
    RoFormerSimClassifierPreprocessor,
)
from roformer_tf.models.roformer_task import RoFormerTask


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSimClassifier(RoFormerTask, keras_hub.models.Task):
    """The supervised stage of RoFormer-Sim (Sim-ft), which trains on labelled pairs of texts.

    The pooler makes a vector of each text. A dense layer without bias turns [a, b, |a - b|] into
    the logits of several tasks at once: in the original two classes of similarity and three of
    inference. The logits serve training only. Afterwards call `embed`, or give the backbone to a
    `RoFormerSim`.

    Args:
        backbone: a `RoFormerBackbone` with a pooler, such as that of a `RoFormerSim`.
        preprocessor: a `RoFormerSimClassifierPreprocessor`, or `None` to take token ids instead of
            strings.
        groups: tuple of ints. Number of classes of each task. With `(2, 3)` labels 0 and 1 belong
            to the first, 2 to 4 to the second. The softmax is over the classes of one task.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of `token_ids`, `segment_ids` and `padding_mask`, each
            `(batch, 2, length)`.

    Returns:
        Logits `(batch, sum(groups))`.

    Raises:
        ValueError: If the backbone has no pooler, or `groups` are not positive integers.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
    ...     masking="unilm", pooler="linear",
    ... )
    >>> classifier = roformer_tf.RoFormerSimClassifier(
    ...     backbone, roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer)
    ... )
    >>> history = classifier.fit((["天气好", "好天"], ["好天气", "天"]), [1, 4], verbose=0)
    >>> classifier.embed("天气").shape
    (16,)

    Reference: `train/supervised.py` of the repository of RoFormer-Sim; the classification objective
    of Sentence-BERT, arXiv 1908.10084, section 3.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerSimClassifierPreprocessor
    needs_pooler = True
    needs_labels = True
    loss_is_mean_over_examples = True
    input_dtypes = TEXT_INPUTS

    def __init__(self, backbone, preprocessor=None, groups=(2, 3), **kwargs):
        check_pooler(backbone, "RoFormerSimClassifier")
        if not groups or not all(isinstance(size, int) and size > 0 for size in groups):
            raise ValueError(
                f"`groups` must be positive integers, such as (2, 3). Received: groups={groups!r}"
            )
        # === Config (before the model, whose constructor compiles it) ===
        self.groups = tuple(groups)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.logits_dense = head_dense(backbone, sum(groups), "logits", use_bias=False)

        # === Functional model ===
        inputs = {
            name: keras.Input((2, None), dtype="int32", name=name) for name in self.input_dtypes
        }
        self.pair_vectors = _PairVectors(backbone, name="pair_vectors")
        super().__init__(inputs, **kwargs)

    def compute_outputs(self, inputs, training=None):
        vectors = self.pair_vectors(inputs, training=training)
        a, b = vectors[:, 0], vectors[:, 1]
        return self.logits_dense(ops.concatenate([a, b, ops.abs(a - b)], axis=-1))

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """Configures training; see `keras.Model.compile`.

        Args:
            optimizer: `"auto"` is Adam with the original's learning rate, 2e-5.
            loss: `"auto"` is `GroupedCrossentropy`.
            metrics: `"auto"` is the share of pairs whose label has the highest logit of its group.
            **kwargs: Arguments of `keras.Model.compile`.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(2e-5)
        if loss == "auto":
            loss = GroupedCrossentropy(self.groups)
        if metrics == "auto":
            metrics = [
                keras.metrics.MeanMetricWrapper(
                    grouped_accuracy, name="accuracy", groups=self.groups
                )
            ]
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def run_on(self, texts):
        self.predict((texts, texts), verbose=0)
        self.embed(texts)

    def check_labels(self, y):
        check_class_labels(y, sum(self.groups), "sum(groups)")

    def weight_of_classes(self, class_weight):
        return class_weights(class_weight, sum(self.groups))


class _PairVectors(keras.layers.Layer):
    """Returns the pooled vectors `(batch, 2, hidden_dim)` of pairs, all from one batch."""

    def __init__(self, backbone, **kwargs):
        super().__init__(dtype=backbone.dtype_policy, **kwargs)
        self.backbone = backbone

    def call(self, inputs):
        texts = {name: ops.reshape(x, (-1, ops.shape(x)[-1])) for name, x in inputs.items()}
        texts["output_positions"] = pooled_positions(texts["token_ids"], "pooler")
        vectors = self.backbone(texts)["pooled_output"]
        return ops.reshape(vectors, (-1, 2, self.backbone.hidden_dim))

    def compute_output_shape(self, shapes):
        return (shapes["token_ids"][0], 2, self.backbone.hidden_dim)
