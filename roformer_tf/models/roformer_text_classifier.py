import keras
import keras_hub
import numpy as np

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers import MeanPooling
from roformer_tf.models.batches import prompt_columns
from roformer_tf.models.labels import (
    are_names,
    check_class_labels,
    check_label_names,
    class_weights,
    label_array,
    label_numbers,
    multi_hot_labels,
    output_kind,
    ranked,
    softmax,
)
from roformer_tf.models.roformer_backbone import (
    RoFormerBackbone,
    check_pooling,
    head_dense,
    pool,
    pooled_positions,
)
from roformer_tf.models.roformer_task import RoFormerTask
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTextClassifier(RoFormerTask, keras_hub.models.TextClassifier):
    """Classification or regression of texts and pairs of texts.

    The default loss depends on the outputs: cross entropy for classes; binary cross entropy for
    `activation="sigmoid"`, one probability or several labels for each text; mean squared error for
    `num_classes=1` without activation, which is regression.

    Args:
        backbone: a `RoFormerBackbone`.
        num_classes: int. Number of classes; 1 for regression or a single probability. By default
            the number of `labels`.
        preprocessor: a `RoFormerTextClassifierPreprocessor`, or `None` to take token ids.
        activation: Activation of the outputs: `None` for logits, `"softmax"` or `"sigmoid"`.
        dropout: float. Dropout rate of the pooled vector.
        pooling: `"cls"` (the vector of the first token), `"mean"` (over tokens), or `"pooler"` (if
            the backbone has one).
        labels: list of strings. Names of the classes, in their order. `fit` and `evaluate` then
            take names as labels too, and `classify` returns them. For a single probability the
            names of the classes below and above 0.5.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`.

    Returns:
        Tensor `(batch, num_classes)`.

    Raises:
        ValueError: If `pooling` is unknown, or is `"pooler"` for a backbone without one; or if
            `num_classes` and `labels` are both missing or do not fit.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    >>> classifier = roformer_tf.RoFormerTextClassifier(
    ...     backbone, labels=["bad", "good"], preprocessor=preprocessor
    ... )
    >>> history = classifier.fit(["天气好", "天"], ["good", "bad"], verbose=0)
    >>> classifier.warmup()
    >>> classifier.predict(["天气"], verbose=0).shape
    (1, 2)
    >>> (label, probability), *others = classifier.classify("天气好")
    >>> label in ("bad", "good"), probability >= 0.5
    (True, True)

    Reference: the fine-tuning scripts of the original repository.
    """

    backbone_cls = RoFormerBackbone
    needs_labels = True
    loss_is_mean_over_examples = True
    preprocessor_cls = RoFormerTextClassifierPreprocessor

    def __init__(
        self,
        backbone,
        num_classes=None,
        preprocessor=None,
        activation=None,
        dropout=0.1,
        pooling="cls",
        labels=None,
        **kwargs,
    ):
        if num_classes is None and labels is not None:
            num_classes = len(labels)
        check_positive_integer("num_classes", num_classes)
        check_pooling(backbone, pooling)
        # === Config (before the model, whose constructor compiles it) ===
        self.num_classes = num_classes
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.pooling = pooling
        if labels is not None:
            check_label_names(labels, num_classes, self.activation)
        self.labels = None if labels is None else list(labels)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.mean_pooling = MeanPooling(name="mean_pooling") if pooling == "mean" else None
        self.output_dropout = keras.layers.Dropout(dropout, dtype="float32", name="output_dropout")
        self.logits_dense = head_dense(backbone, num_classes, "logits")

        # === Functional model ===
        super().__init__(backbone.input, **kwargs)

    def compute_outputs(self, inputs, training=None):
        return self.activation(self.compute_logits(inputs, training))

    def compute_logits(self, inputs, training=None):
        """Computes the outputs without their activation."""
        positions = pooled_positions(inputs["token_ids"], self.pooling)
        outputs = self.backbone({**inputs, "output_positions": positions}, training=training)
        return self.head_outputs(outputs, inputs["padding_mask"], training)

    def head_outputs(self, outputs, padding_mask, training=None):
        """Computes the logits from the outputs of the backbone."""
        pooled = pool(outputs, padding_mask, self.pooling, self.mean_pooling)
        return self.logits_dense(self.output_dropout(pooled, training=training))

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """See `keras_hub.models.TextClassifier.compile`, and the class for the default losses."""
        defaults = None
        if self.activation is keras.activations.sigmoid:
            defaults = keras.losses.BinaryCrossentropy(), keras.metrics.BinaryAccuracy()
        elif self.num_classes == 1:
            defaults = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
        if defaults is not None:
            loss = defaults[0] if loss == "auto" else loss
            metrics = [defaults[1]] if metrics == "auto" else metrics
        elif metrics == "auto" and _name_of(loss).startswith("categorical"):
            metrics = [keras.metrics.CategoricalAccuracy()]  # of one-hot labels
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def classify(self, texts, top_k=None, batch_size=32):
        """Returns the probabilities of the classes of each text, the most probable first.

        Args:
            texts: string or list of strings, or for pairs a tuple of two of them.
            top_k: int. Number of classes for each text, by default all.
            batch_size: int. Number of texts that run at once.

        Returns:
            For each text a list of `(label, probability)`; for a single text its list alone. A
            label is a name of `labels`, or without them the number of the class.

        Raises:
            ValueError: If there is no text, the model has no preprocessor or no classes (use
                `predict` for regression), or its outputs are NaN.
            TypeError: If a text is not a string.

        Example:

        >>> import roformer_tf
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
        ... )
        >>> classifier = roformer_tf.RoFormerTextClassifier(
        ...     backbone,
        ...     labels=["bad", "good"],
        ...     preprocessor=roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer),
        ... )
        >>> history = classifier.fit(["天气好", "天"], ["good", "bad"], verbose=0)
        >>> (label, probability), *others = classifier.classify("天气好")
        >>> label in ("bad", "good"), probability >= 0.5
        (True, True)
        """
        kind = output_kind(self.num_classes, self.activation)
        if kind == "scores":
            raise ValueError("A regression model has no classes: its numbers come from `predict`.")
        check_positive_integer("top_k", top_k, optional=True)
        self.check_preprocessor()
        is_pair = isinstance(texts, tuple)
        parts, is_single = prompt_columns(texts if is_pair else (texts,))
        texts = parts if is_pair else parts[0]
        outputs = self.predict(texts, batch_size=batch_size, verbose=0).astype("float64")
        if self.activation is keras.activations.linear:
            outputs = softmax(outputs)
        if kind == "binary":
            outputs = np.concatenate([1.0 - outputs, outputs], axis=-1)
        labels = self.labels or range(outputs.shape[-1])
        results = [ranked(labels, row, top_k) for row in outputs]
        return results[0] if is_single else results

    def _has_several_labels(self):
        return output_kind(self.num_classes, self.activation) == "sigmoid"

    def convert_labels(self, x, y):
        """Returns names of labels, one or a list for each text, as 0 and 1 for each class."""
        if self.labels is None or not self._has_several_labels():
            return y
        kind = getattr(getattr(y, "dtype", None), "kind", "")
        if kind in ("O", "U"):  # lists in an array, or in a pandas column
            y = y.tolist()
        return multi_hot_labels(y, self.labels) if isinstance(y, list | tuple) else y

    def encode_labels(self, y):
        y = self.convert_labels(None, y)
        if self.labels is None or not are_names(y):
            return y
        one_hot = self._has_several_labels() or _name_of(self.loss).startswith("categorical")
        return label_numbers(y, self.labels, one_hot)

    def weight_of_classes(self, class_weight):
        if output_kind(self.num_classes, self.activation) not in ("softmax", "binary"):
            raise ValueError(
                "`class_weight` is for classes that exclude each other. Use `sample_weight` for "
                f"this model. Received: class_weight={class_weight}"
            )
        return class_weights(class_weight, max(self.num_classes, 2), self.labels)

    def check_labels(self, y):
        y = label_array(y)
        if y is None:
            return
        if self.labels is not None and y.dtype.kind in "UOS":
            names = {x.decode() if isinstance(x, bytes) else x for x in y.ravel().tolist()}
            unknown = [name for name in names if name not in self.labels]
            if unknown:
                raise ValueError(
                    f"Labels must be among {self.labels}, or their numbers. Received: {unknown[0]!r}"
                )
            return
        if self.num_classes > 1:
            is_sparse = _name_of(self.loss).startswith("sparse")
            if is_sparse and y.ndim == 2 and y.shape[1] != 1:
                raise ValueError(
                    "The loss takes the number of the class of each example, and the labels have "
                    f"the shape {y.shape}. One-hot labels need "
                    "`compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True))`. "
                    "Multi-label classification, any number of classes for an example, needs a "
                    "model with `activation='sigmoid'`."
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
            "labels": self.labels,
        }


def _name_of(loss):
    """Returns the name of a loss, which is a string, a function or a `keras.losses.Loss`."""
    return str(getattr(loss, "name", getattr(loss, "__name__", loss)))
