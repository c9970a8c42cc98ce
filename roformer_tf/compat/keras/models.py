"""`keras.models` with the methods of Keras 2: `fit_generator`, any file name for weights, …"""

import contextlib
import functools
import inspect
import itertools
import re
import sys
import warnings
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor

import keras
import numpy as np
import tensorflow as tf
from keras import Input  # noqa: F401
from keras.models import *  # noqa: F403
from keras.src.models.functional import Functional

from roformer_tf.compat import names_not_offered
from roformer_tf.compat.keras.model_files import FileMethods, load_model, save_model  # noqa: F401

_AHEAD = 10  # batches that a generator's thread makes before they are needed
_END = object()


def _is_generator(x):
    return hasattr(x, "__next__") and not isinstance(x, tf.data.Iterator)


class _Batches(contextlib.ExitStack):
    """Runs generators in threads of their own, and stops them at the end of a `with` block.

    A generator may call `predict` of another model, which would wait for itself in a thread of
    `tf.data`.
    """

    def as_dataset(self, batches):
        """Returns a dataset of a generator's batches; anything else as it is."""
        if not _is_generator(batches):
            return batches
        first = next(batches, _END)
        if first is _END:
            raise ValueError(
                "Expected a generator of at least one batch, which has not been read to its end. "
                f"Received: {batches!r}, which has none"
            )
        thread = ThreadPoolExecutor(1)
        self.callback(thread.shutdown, cancel_futures=True)
        waiting = deque([thread.submit(lambda: first)])

        def take():
            """Returns the next batch; `_END` after the last one, and after the `with` block."""
            try:
                while len(waiting) < _AHEAD:
                    waiting.append(thread.submit(next, batches, _END))
            except RuntimeError:  # the thread is shut down
                return _END
            try:
                return waiting.popleft().result()
            except CancelledError:
                return _END

        return _dataset(first, lambda: iter(take, _END))


def _dataset(first, batches):
    """Returns a dataset of float32 batches of any widths.

    Keras 3 alone would infer one shape for all from the first two.

    Args:
        first: The first batch: `(x, y)`, `(x, y, weights)` or `x`. `None` at its end is left out.
        batches: Function that returns an iterator of all batches.
    """
    dtype = keras.config.floatx()

    def arrays(batch):
        if isinstance(batch, dict):
            return {name: arrays(x) for name, x in batch.items()}
        if isinstance(batch, list | tuple):
            return tuple(map(arrays, batch))
        x = np.asarray(batch)
        return x if x.dtype.kind in "US" else x.astype(dtype)

    def parts(batch):
        batch = batch if isinstance(batch, tuple) else (batch,)
        while batch[-1] is None:
            batch = batch[:-1]
        return arrays(batch)

    def spec(x, is_label):
        shape = [None] * x.ndim
        if is_label and x.ndim > 1 and x.shape[-1] == 1:
            shape[-1] = 1  # by it Keras chooses the metric that "accuracy" means
        return tf.TensorSpec(shape, tf.string if x.dtype.kind in "US" else dtype)

    signature = tuple(
        keras.tree.map_structure(functools.partial(spec, is_label=number > 0), part)
        for number, part in enumerate(parts(first))
    )
    dataset = tf.data.Dataset.from_generator(
        lambda: map(parts, batches()), output_signature=signature
    )
    return dataset.prefetch(tf.data.AUTOTUNE)


class _Keras2Methods(FileMethods):
    """Mixin: what models of Keras 2 can do and those of Keras 3 cannot."""

    # === Training ===

    def compile(self, optimizer="rmsprop", loss=None, *args, jit_compile=False, **kwargs):
        """See `keras.Model.compile`.

        A function as `loss` gets labels and outputs as they are, both float32. XLA is off by
        default, because it compiles again for each width.
        """
        loss = keras.tree.map_structure(_plain_loss, loss, none_is_leaf=True)
        super().compile(optimizer, loss, *args, jit_compile=jit_compile, **kwargs)
        if hasattr(self.optimizer, "add_model"):
            self.optimizer.add_model(self)

    def compile_from_config(self, config):
        """Compiles as the saved model was; warns if its loss or optimizer cannot be found."""
        try:
            config = keras.saving.deserialize_keras_object(config)
        except (TypeError, ValueError) as error:
            warnings.warn(
                f"The model is loaded, but not compiled. {error} Pass `custom_objects` with its "
                "loss, metrics and optimizer to `load_model`, or call `compile`.",
                stacklevel=2,
            )
            return
        self.compile(**config)
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, y=None, *args, validation_data=None, validation_steps=None, **kwargs):
        """See `keras.Model.fit`. Batches of a generator may have any widths."""
        with _Batches() as batches:
            x = batches.as_dataset(x)
            if isinstance(x, tf.data.Dataset):
                kwargs["shuffle"] = False  # only the dataset itself could shuffle
            if validation_data is not None:
                validation_data = batches.as_dataset(validation_data)
                kwargs.update(validation_data=validation_data, validation_steps=validation_steps)
            return super().fit(x, y, *args, **kwargs)

    def fit_generator(
        self,
        generator,
        steps_per_epoch=None,
        epochs=1,
        verbose=1,
        callbacks=None,
        validation_data=None,
        validation_steps=None,
        validation_freq=1,
        class_weight=None,
        max_queue_size=10,
        workers=1,
        use_multiprocessing=False,
        shuffle=True,
        initial_epoch=0,
    ):
        """Runs `fit`. A thread makes the batches, whatever `workers` is."""
        return self.fit(
            generator,
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation_data,
            validation_steps=validation_steps,
            validation_freq=validation_freq,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
        )

    def evaluate(self, x=None, y=None, *args, verbose=0, **kwargs):
        """See `keras.Model.evaluate`; shows no progress by default."""
        with _Batches() as batches:
            return super().evaluate(batches.as_dataset(x), y, *args, verbose=verbose, **kwargs)

    def evaluate_generator(self, generator, steps=None, verbose=0, **kwargs):
        """Runs `evaluate`."""
        return self.evaluate(generator, steps=steps, verbose=verbose)

    def train_step(self, data):
        return super().train_step(_with_float_labels(data))

    def test_step(self, data):
        return super().test_step(_with_float_labels(data))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if isinstance(y_pred, list | tuple):
            # Keras 3 asks each of several outputs for its number of rows
            y_pred = keras.tree.map_structure(
                lambda output: tf.reshape(output, [1]) if output.shape.rank == 0 else output, y_pred
            )
        y, sample_weight = self._of_one_output(y), self._of_one_output(sample_weight)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, sample_weight = self._of_one_output(y), self._of_one_output(sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _of_one_output(self, parts):
        """Returns labels or weights alone that a dict has by the name of the only output."""
        has_one = isinstance(self, Functional) and isinstance(self.output, keras.KerasTensor)
        if not (has_one and isinstance(parts, dict)):
            return parts
        if list(parts) != self.output_names:
            raise ValueError(
                f"Labels and weights must be by the name of the output, {self.output_names}. "
                f"Received: {list(parts)}"
            )
        return parts[self.output_names[0]]

    # === Prediction ===

    def predict(self, x, batch_size=None, verbose=0, steps=None, callbacks=None, **kwargs):
        """Returns the outputs as an array, or as a list of arrays if there are several.

        Arrays of any width run in one graph, 32 rows at once by default. Shows no progress by
        default. `workers` and others of Keras 2 change nothing.

        Args:
            x: Array, list of arrays, dict of arrays by the names of the inputs, generator of these
                or of tuples with them at first, or `tf.data.Dataset`.
            batch_size, verbose, steps, callbacks: See `keras.Model.predict`.
        """
        if _is_generator(x):
            batches = (b[0] if isinstance(b, tuple) else b for b in itertools.islice(x, steps))
            parts = [self._predict_arrays(batch, batch_size) for batch in batches]
            return _single([np.concatenate(part) for part in zip(*parts)])
        if isinstance(x, tf.data.Dataset) or callbacks or steps is not None:
            outputs = super().predict(x, batch_size, verbose, steps, callbacks)
            return _single(keras.tree.flatten(outputs))
        return _single(self._predict_arrays(x, batch_size))

    def predict_generator(self, generator, steps=None, **kwargs):
        """Runs `predict`."""
        return self.predict(generator, steps=steps)

    def predict_on_batch(self, x):
        """Returns the outputs of one batch, as `predict` does."""
        return _single(self._predict_arrays(x, sys.maxsize))

    def _predict_arrays(self, x, batch_size):
        if isinstance(x, dict):
            x = [x[tensor.name] for tensor in self.inputs]
        if not (isinstance(x, list | tuple) and len(x) == len(self.inputs)):
            x = keras.tree.flatten(x)
        arrays = [np.asarray(array) for array in x]
        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"Model {self.name!r} has {len(self.inputs)} inputs: "
                f"{', '.join(tensor.name for tensor in self.inputs)}. Received: {len(arrays)} arrays"
            )
        if len({array.shape[:1] for array in arrays}) > 1:
            names = [tensor.name for tensor in self.inputs]
            raise ValueError(
                "All inputs must have the same number of rows. Pad or repeat the shorter ones. "
                f"Received: {names} of shapes {[array.shape for array in arrays]}"
            )
        step, parts = batch_size or 32, []
        for start in range(0, len(arrays[0]) or 1, step):
            batch = [
                tf.convert_to_tensor(array[start : start + step], tensor.dtype)
                for array, tensor in zip(arrays, self.inputs)
            ]
            parts.append([output.numpy() for output in self._predict_graph(*batch)])
        return parts[0] if len(parts) == 1 else [np.concatenate(part) for part in zip(*parts)]

    @functools.cached_property
    def _predict_graph(self):
        specs = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in self.inputs]

        @tf.function(input_signature=specs, autograph=False)
        def predict(*inputs):
            inputs = keras.tree.pack_sequence_as(self.input, list(inputs))
            return keras.tree.flatten(self(inputs, training=False))

        return predict


@keras.saving.register_keras_serializable(package="roformer_tf")
class FunctionalModel(_Keras2Methods, Functional):
    """What `Model(inputs, outputs)` returns."""

    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(_single(inputs), _single(outputs), name=name, **kwargs)

    def _standardize_inputs(self, inputs):
        # datasets give tuples, and programs for Keras 2 lists of one
        if isinstance(inputs, list | tuple):
            inputs = _single(list(inputs))
        return super()._standardize_inputs(inputs)

    def add_loss(self, *args, **kwargs):
        """Raises `NotImplementedError`, as `add_metric` does: losses belong to layers."""
        raise NotImplementedError(
            "A model that is made cannot get a loss or a metric. Compute it in a layer, with "
            "`add_loss` and `add_metric` there: see `Loss` of roformer_tf.compat.bert4keras.layers."
        )

    add_metric = add_loss


class Model(_Keras2Methods, keras.Model):
    """`keras.Model` with the methods of Keras 2.

    Args:
        *args, **kwargs: `inputs`, `outputs` and `name`; or nothing, in a subclass.

    >>> import numpy as np
    >>> from roformer_tf.compat.bert4keras.backend import keras
    >>> x = keras.layers.Input(shape=(None,))
    >>> model = keras.models.Model(x, keras.layers.Lambda(lambda x: 2 * x)(x))
    >>> model.predict(np.array([[1, 2]])).tolist()
    [[2.0, 4.0]]
    """

    def __new__(cls, *args, **kwargs):
        if cls is Model and (len(args) >= 2 or "outputs" in kwargs):
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)


@keras.saving.register_keras_serializable(package="roformer_tf")
class _PlainLoss(keras.losses.Loss):
    """Calls a function with labels and outputs as they are."""

    def __init__(self, function):
        name = re.sub(r"\W", "", getattr(function, "__name__", ""))
        super().__init__(name=name or "loss")
        self.call = function

    def get_config(self):
        function = self.call
        named = hasattr(function, "__name__")
        name = keras.saving.get_registered_name(function) if named else repr(function)
        return {"function": name, "module": getattr(function, "__module__", None)}

    @classmethod
    def from_config(cls, config):
        name = config["function"]
        function = keras.saving.get_registered_object(name)
        if function is None:
            function = getattr(keras.losses, name, None)
            # a script may have a function of its own under a name that Keras has too
            if getattr(function, "__module__", None) != config["module"]:
                raise ValueError(f"There is no function {name!r} in `custom_objects`.")
        return cls(function)


def _plain_loss(loss):
    is_function = callable(loss) and not isinstance(loss, keras.losses.Loss)
    return _PlainLoss(loss) if is_function and not inspect.isclass(loss) else loss


def _with_float_labels(data):
    """Returns a batch whose labels are float32, as those of Keras 2 are."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    if y is None:
        return data

    def cast(label):
        return tf.cast(label, keras.config.floatx()) if label.dtype != tf.string else label

    return keras.utils.pack_x_y_sample_weight(x, keras.tree.map_structure(cast, y), weights)


def _single(tensors):
    """Returns the tensor or array of a list of one."""
    return tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors


__getattr__ = names_not_offered(__name__, {}, "Keras 3 has no such name: see keras.io/api/models.")
