import contextlib

import keras
import numpy as np

from roformer_tf.models.batches import (
    batched,
    is_columns,
    split_columns,
    string_tensors,
    to_columns,
)
from roformer_tf.models.optional_inputs import OptionalInputs, refuse_unknown
from roformer_tf.models.presets import FromPreset
from roformer_tf.models.quantized import RestoresQuantization
from roformer_tf.models.roformer_backbone import RoFormerBackbone


class RoFormerTask(OptionalInputs, FromPreset, RestoresQuantization):
    """Mixin of all tasks: `from_preset` for original folders, and a `fit` that does what the formulas say."""

    optional_inputs = RoFormerBackbone.optional_inputs

    def __init__(self, *args, **kwargs):
        known = {"inputs", "outputs", "name", "trainable", "compile"}
        refuse_unknown(type(self), kwargs, known)
        super().__init__(*args, **kwargs)

    def fit(
        self,
        x=None,
        y=None,
        sample_weight=None,
        *,
        batch_size=None,
        validation_data=None,
        validation_split=None,
        shuffle=True,
        **kwargs,
    ):
        """Trains the model; see `keras.Model.fit`.

        Args:
            x: a list or array of strings (or a tuple of two of them, for pairs) when the task has a preprocessor, model
                inputs otherwise; or a `tf.data.Dataset` of batches.
            y: labels, unless `x` is a dataset.
            sample_weight: optional weights.
            batch_size: positive integer, 32 by default; not for datasets.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a `tf.data.Dataset` of batches.
            validation_split: part of the examples, the last ones, to validate on; not for datasets.
            shuffle: whether the order of the examples is drawn anew in every epoch. Datasets keep their own order.
            **kwargs: of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: for an empty dataset, columns of different lengths, or labels that the model cannot have.
            TypeError: for examples that are no strings, when the task has a preprocessor.
        """
        x = self._checked(x, y)
        if isinstance(validation_data, tuple | list):
            values = keras.utils.unpack_x_y_sample_weight(tuple(validation_data))
            value_x = self._checked(*values[:2])
            if is_columns(value_x):
                # KerasHub takes no `batch_size` for them when `x` is a dataset
                validation_data = batched(to_columns(value_x, *values[1:]), batch_size)
        if is_columns(x):
            # KerasHub would make a dataset too, but not shuffle it
            columns = to_columns(x, y, sample_weight)
            if validation_split and validation_data is None:
                columns, values = split_columns(columns, validation_split)
                validation_data = batched(values, batch_size)
            x = batched(columns, batch_size, shuffle)
            y = sample_weight = batch_size = validation_split = None
        with self._label_errors():
            history = super().fit(
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                validation_data=validation_data,
                validation_split=validation_split,
                shuffle=False,  # of arrays it is done; of datasets Keras cannot, and says so
                **kwargs,
            )
        if history.epoch and not history.history:
            raise ValueError("The dataset is empty: it gave no batch to train on.")
        return history

    def evaluate(self, x=None, y=None, sample_weight=None, **kwargs):
        """Loss and metrics; see `keras.Model.evaluate`. Arguments and errors as of `fit`."""
        x = self._checked(x, y)
        if is_columns(x):
            x, y, sample_weight = to_columns(x, y, sample_weight)
        with self._label_errors():
            return super().evaluate(x=x, y=y, sample_weight=sample_weight, **kwargs)

    def predict(self, x, **kwargs):
        """Outputs of the model; see `keras.Model.predict`. Arguments and errors as of `fit`."""
        return super().predict(self._checked(x), **kwargs)

    def _checked(self, x, y=None):
        check_not_empty(x)
        self.check_labels(y)
        return x if self.preprocessor is None else string_tensors(x)

    def get_config(self):
        config = super().get_config()
        if self.optimizer is not None and self.optimizer.built:
            config["optimizer_built"] = True
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        optimizer_built = config.pop("optimizer_built", False)
        model = super().from_config(config)
        model._optimizer_was_built = optimizer_built
        return model

    def compile_from_config(self, config):
        """Compiles a loaded model as it was saved, ready for the optimizer state.

        Keras leaves this out for classes with a `compile` of their own, as KerasHub's tasks have.
        """
        self.compile(**keras.saving.deserialize_keras_object(config))
        if getattr(self, "_optimizer_was_built", False):
            self.optimizer.build(self.trainable_variables)

    def enable_lora(self, rank, target_layer_names=None):
        """Freezes the backbone but for low-rank updates of its projections; a new head stays trainable.

        Compile again afterwards, since an optimizer is made for the weights that it found. A model that is saved has
        the updates merged into its weights; `backbone.save_lora_weights` keeps them apart.

        Args:
            rank: positive integer, rank of the updates.
            target_layer_names: names of the layers to adapt; by default the query, key and value projections.

        Reference: LoRA, arXiv 2106.09685.
        """
        self.backbone.enable_lora(rank, target_layer_names)

    def quantize(self, mode=None, config=None, **kwargs):
        """Quantizes the weights; see `keras.Model.quantize`."""
        if self.preprocessor is not None:
            self.preprocessor.tokenizer.built = True  # Keras refuses layers that were never called
        super().quantize(mode, config=config, **kwargs)

    def check_labels(self, y):
        """Hook of the tasks: refuses labels that the model cannot have."""

    @contextlib.contextmanager
    def _label_errors(self):
        # Labels inside a dataset are seen only by the loss, whose kernel names the value but not the mend.
        try:
            yield
        except Exception as error:
            ours = str(error).startswith("A label of the dataset")  # of `evaluate` inside `fit`
            if "outside the valid range" in str(error) and not ours:
                detail = next(x for x in str(error).split("\n") if "outside the valid range" in x)
                raise ValueError(
                    "A label of the dataset is out of range: labels must be integers from 0 to the number of "
                    f"classes - 1. Received: {detail}"
                ) from error
            raise

    def make_train_function(self, force=False):
        """Makes the variables of the optimizer first: were they made in the graph of a step, it would be made twice."""
        if keras.config.backend() == "tensorflow" and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_weights)
        return super().make_train_function(force)

    def train_step(self, *args):
        """One step on one batch, which starts when the batch is there.

        TensorFlow asks a dataset of unknown length for one batch too many and learns of its end only then. Operations
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
            "The dataset is empty: expected at least one example. Received: 0 examples"
        )


def check_class_labels(y, num_classes):
    """Refuses integer labels outside 0 … num_classes - 1, when `y` is at hand as an array."""
    if y is None or not isinstance(y, (list, tuple, np.ndarray)):
        return
    y = np.asarray(y)
    if y.dtype.kind not in "iufb":
        raise ValueError(
            f"Labels must be integers from 0 to `num_classes` - 1 = {num_classes - 1}. Received: labels such as "
            f"{next((v for v in y.ravel().tolist() if not isinstance(v, int | float)), None)!r}; number the classes, "
            "`[names.index(label) for label in labels]`"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError(
            "A label is NaN. Expected a number for every example; leave out the others"
        )
    if y.dtype.kind == "f" and y.size in y.shape and (y != np.floor(y)).any():
        raise ValueError(
            f"Labels must be integers from 0 to `num_classes` - 1 = {num_classes - 1}. Received: labels such as "
            f"{y[y != np.floor(y)].flat[0]}; for regression make the model with `num_classes=1`"
        )
    if y.size and y.dtype.kind in "iu" and (y.min() < 0 or y.max() >= num_classes):
        raise ValueError(
            f"Labels must be integers from 0 to `num_classes` - 1 = {num_classes - 1}. "
            f"Received: labels from {y.min()} to {y.max()}; pass `num_classes={y.max() + 1}` or mend the labels"
        )
