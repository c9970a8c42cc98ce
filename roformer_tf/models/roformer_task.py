import contextlib

import keras
import numpy as np

from roformer_tf.models.optional_inputs import OptionalInputs, refuse_unknown
from roformer_tf.models.presets import FromOriginalPreset
from roformer_tf.models.quantized import RestoresQuantization


class RoFormerTask(OptionalInputs, FromOriginalPreset, RestoresQuantization):
    """Mixin of all tasks: `from_preset` for original folders, and a `fit` that does what the formulas say."""

    optional_inputs = ("position_ids",)

    def __init__(self, *args, **kwargs):
        known = {"inputs", "outputs", "name", "trainable", "compile"}
        refuse_unknown(type(self), kwargs, known)
        super().__init__(*args, **kwargs)

    def fit(self, x=None, y=None, sample_weight=None, **kwargs):
        """Trains the model; see `keras.Model.fit`.

        Args:
            x: raw strings (or a tuple of two lists of strings, for pairs) when the task has a preprocessor, model
                inputs otherwise; or a `tf.data.Dataset` of them.
            y: labels, unless `x` is a data set.
            sample_weight: optional weights.
            **kwargs: of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: for an empty data set, or labels that the model cannot have.
        """
        check_not_empty(x)
        self.check_labels(y)
        with self._label_errors():
            return super().fit(x=x, y=y, sample_weight=sample_weight, **kwargs)

    def evaluate(self, x=None, y=None, sample_weight=None, **kwargs):
        """Loss and metrics; see `keras.Model.evaluate`. Arguments and errors as of `fit`."""
        check_not_empty(x)
        self.check_labels(y)
        with self._label_errors():
            return super().evaluate(x=x, y=y, sample_weight=sample_weight, **kwargs)

    def predict(self, x, **kwargs):
        """Outputs of the model; see `keras.Model.predict`. Arguments and errors as of `fit`."""
        check_not_empty(x)
        return super().predict(x, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        if config is not None:
            config["optimizer_built"] = bool(self.optimizer is not None and self.optimizer.built)
        return config

    def compile_from_config(self, config):
        """Compiles a loaded model as it was saved, ready for the optimizer state.

        Keras leaves this out for classes with a `compile` of their own, as KerasHub's tasks have.
        """
        config = dict(config)
        optimizer_built = config.pop("optimizer_built", False)
        self.compile(**keras.saving.deserialize_keras_object(config))
        if optimizer_built:
            self.optimizer.build(self.trainable_variables)

    def check_labels(self, y):
        """Hook of the tasks: refuses labels that the model cannot have."""

    @contextlib.contextmanager
    def _label_errors(self):
        # Labels inside a data set are seen only by the loss, whose kernel names the value but not the mend.
        try:
            yield
        except Exception as error:
            if "outside the valid range" in str(error):
                detail = next(x for x in str(error).split("\n") if "outside the valid range" in x)
                raise ValueError(
                    "A label of the data set is out of range: labels must be integers from 0 to the number of "
                    f"classes - 1. Received: {detail}"
                ) from error
            raise

    def train_step(self, *args):
        """One step on one batch, which starts when the batch is there.

        TensorFlow asks a data set of unknown length for one batch too many and learns of its end only then. Operations
        that do not depend on the batch (the step counter, weight decay, moving averages) would have run already.
        """
        if keras.config.backend() != "tensorflow":
            return super().train_step(*args)
        import tensorflow as tf

        with tf.control_dependencies([t for t in keras.tree.flatten(args) if tf.is_tensor(t)]):
            return super().train_step(*args)


def check_not_empty(x):
    """Refuses data without a single example."""
    first = x[0] if isinstance(x, tuple) and x else x
    if isinstance(first, dict):
        first = next(iter(first.values()), [])
    size = None
    if isinstance(first, (list, tuple, np.ndarray)):
        size = len(first)
    elif hasattr(x, "cardinality"):
        size = int(x.cardinality())
    if size == 0:
        raise ValueError(
            "The data set is empty: expected at least one example. Received: 0 examples"
        )


def check_class_labels(y, num_classes):
    """Refuses integer labels outside 0 … num_classes - 1, when `y` is at hand as an array."""
    if y is None or not isinstance(y, (list, tuple, np.ndarray)):
        return
    y = np.asarray(y)
    if y.size and y.dtype.kind in "iu" and (y.min() < 0 or y.max() >= num_classes):
        raise ValueError(
            f"Labels must be integers from 0 to `num_classes` - 1 = {num_classes - 1}. "
            f"Received: labels from {y.min()} to {y.max()}; pass `num_classes={y.max() + 1}` or mend the labels"
        )
