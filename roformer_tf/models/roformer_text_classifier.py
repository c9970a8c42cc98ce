import keras
import keras_hub

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.layers import MeanPooling
from roformer_tf.models.roformer_backbone import RoFormerBackbone, initializer_of, sequence_output
from roformer_tf.models.roformer_task import (
    RoFormerTask,
    check_class_labels,
    check_pooler,
    label_array,
)
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)

POOLINGS = ("cls", "mean", "pooler")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTextClassifier(RoFormerTask, keras_hub.models.TextClassifier):
    """Classification or regression of texts and pairs of texts.

    The default loss depends on the outputs: cross entropy for classes; binary cross entropy for
    `num_classes=1` with `activation="sigmoid"`; mean squared error for `num_classes=1` without
    activation, which is regression.

    Args:
        backbone: a `RoFormerBackbone`.
        num_classes: int. Number of classes; 1 for regression or a single probability.
        preprocessor: a `RoFormerTextClassifierPreprocessor`, or `None` to take token ids instead of
            strings.
        activation: Activation of the outputs: `None` for logits, `"softmax"` or `"sigmoid"`.
        dropout: float. Dropout rate of the pooled vector.
        pooling: `"cls"` (the vector of the first token), `"mean"` (over tokens), or `"pooler"` (if
            the backbone has one).
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`.

    Returns:
        Tensor `(batch, num_classes)`.

    Raises:
        ValueError: If `pooling` is unknown, or is `"pooler"` for a backbone without one.

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> classifier = roformer_tf.RoFormerTextClassifier(backbone, num_classes=3, pooling="mean")
    >>> ids = np.array([[2, 15, 31, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> classifier.predict(inputs, verbose=0).shape
    (1, 3)

    Reference: the fine-tuning scripts of the original repository.
    """

    backbone_cls = RoFormerBackbone
    needs_labels = True
    preprocessor_cls = RoFormerTextClassifierPreprocessor

    def __init__(
        self,
        backbone,
        num_classes,
        preprocessor=None,
        activation=None,
        dropout=0.1,
        pooling="cls",
        **kwargs,
    ):
        check_positive_integer("num_classes", num_classes)
        check_one_of("pooling", pooling, POOLINGS)
        if pooling == "pooler":
            check_pooler(backbone, "`pooling='pooler'`")
        # === Config (before the model, whose constructor compiles it) ===
        self.num_classes = num_classes
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.pooling = pooling

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.mean_pooling = MeanPooling(name="mean_pooling") if pooling == "mean" else None
        self.output_dropout = keras.layers.Dropout(dropout, dtype="float32", name="output_dropout")
        # In float32 under every dtype policy: softmax and loss need the precision.
        self.logits_dense = keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=initializer_of(backbone.norm, backbone.num_layers),
            dtype="float32",
            name="logits",
        )

        # === Functional model ===
        super().__init__(
            inputs=backbone.input, outputs=self.compute_outputs(backbone.input), **kwargs
        )

    def compute_outputs(self, inputs, training=None):
        """Computes the outputs from all inputs; see `RoFormerModel.compute_outputs`."""
        outputs = self.backbone(inputs, training=training)
        if self.pooling == "pooler":
            pooled = outputs["pooled_output"]
        elif self.pooling == "mean":
            pooled = self.mean_pooling(sequence_output(outputs), inputs["padding_mask"])
        else:
            pooled = sequence_output(outputs)[:, 0]
        return self.logits_dense(self.output_dropout(pooled, training=training))

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """See `keras_hub.models.TextClassifier.compile`, and above for the default losses."""
        if self.num_classes == 1:
            defaults = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
            if self.activation is keras.activations.sigmoid:
                defaults = keras.losses.BinaryCrossentropy(), keras.metrics.BinaryAccuracy()
            loss = defaults[0] if loss == "auto" else loss
            metrics = [defaults[1]] if metrics == "auto" else metrics
        elif metrics == "auto" and str(getattr(loss, "name", loss)).startswith("categorical"):
            metrics = [keras.metrics.CategoricalAccuracy()]  # of one-hot labels
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def check_labels(self, y):
        y = label_array(y)
        if y is None:
            return
        if self.num_classes > 1:
            is_sparse = str(getattr(self.loss, "name", self.loss)).startswith("sparse")
            if is_sparse and y.ndim == 2 and y.shape[1] != 1:
                raise ValueError(
                    "The loss takes the number of the class of each example, and the labels have "
                    f"the shape {y.shape}. One-hot labels need "
                    "`compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True))`."
                )
            check_class_labels(y, self.num_classes)
        elif y.dtype.kind not in "iufb":
            raise ValueError(
                "A model with `num_classes=1` needs numbers as labels. Received: labels such as "
                f"{y.tolist()[0]!r}"
            )

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "pooling": self.pooling,
        }
