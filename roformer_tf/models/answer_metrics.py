from collections.abc import Iterator

import keras


class AnswerMetrics(keras.callbacks.Callback):
    """Scores whole answers at the end of each epoch, and keeps the best weights.

    The scores are added to the epoch's logs as `val_f1`, …, so that other callbacks see them if
    they come later in the list.

    Args:
        x: Examples, as for `predict`; not a generator, as every epoch reads them.
        y: What the answers are compared with.
        score: Function of `(y, answers)` that returns a dictionary of numbers, such as `entity_f1`,
            `reading_scores` or `choice_accuracy`.
        monitor: string. The score that is best when it is highest. By default the last one.
        restore_best_weights: bool. Whether the model gets the weights of its best epoch when
            training ends.
        **options: Arguments of `predict`, such as `batch_size`.

    Attributes:
        best: float. The best score so far, or `None`.
        best_epoch: int.

    Raises:
        ValueError: If `x` is a generator, or `monitor` is not among the scores.

    Example:

    >>> import keras
    >>> import roformer_tf
    >>> from roformer_tf.models import AnswerMetrics, entity_f1
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "北", "京", "我", "在"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerTokenClassifierPreprocessor(tokenizer)
    >>> tagger = roformer_tf.RoFormerTokenClassifier(backbone, ["LOC"], preprocessor)
    >>> texts, entities = ["我在北京"], [[(2, 4, "LOC")]]
    >>> metrics = AnswerMetrics(texts, entities, entity_f1)
    >>> history = tagger.fit(texts, entities, callbacks=[metrics], verbose=0)
    >>> sorted(history.history)
    ['loss', 'val_f1', 'val_precision', 'val_recall']

    Reference: the `Evaluator` callbacks of the original's scripts.
    """

    def __init__(self, x, y, score, monitor=None, restore_best_weights=True, **options):
        super().__init__()
        if isinstance(x, Iterator):
            raise ValueError(
                "`x` is read after every epoch, and a generator only once: pass a list, or a "
                f"`tf.data.Dataset` of it. Received: x={x!r}"
            )
        self.x, self.y, self.score = x, y, score
        self.monitor = monitor
        self.restore_best_weights = restore_best_weights
        self.options = {"verbose": 0, **options}
        self.best = self.best_epoch = self._weights = None

    def on_train_begin(self, logs=None):
        self.best = self.best_epoch = self._weights = None

    def on_epoch_end(self, epoch, logs=None):
        scores = self.score(self.y, self.model.predict(self.x, **self.options))
        monitor = list(scores)[-1] if self.monitor is None else self.monitor.removeprefix("val_")
        if monitor not in scores:
            raise ValueError(
                f"`monitor` must be one of {list(scores)}. Received: monitor={self.monitor!r}"
            )
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in scores.items()})
        if scores[monitor] > (float("-inf") if self.best is None else self.best):  # NaN is not
            self.best, self.best_epoch = scores[monitor], epoch
            if self.restore_best_weights:
                self._weights = self.model.get_weights()

    def on_train_end(self, logs=None):
        if self._weights is not None:
            self.model.set_weights(self._weights)
            self._weights = None
