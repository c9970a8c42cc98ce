"""`keras.models` with the methods of Keras 2: `fit_generator`, any file name for weights, …"""

import inspect
import re
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import Input, Sequential  # noqa: F401
from keras.models import clone_model, load_model, model_from_json, save_model  # noqa: F401
from keras.src.models.functional import Functional

from roformer_tf.compat.keras.batches import Batches, is_generator
from roformer_tf.compat.missing import missing_name
from roformer_tf.files import replace_file


class _Keras2Methods:
    """What models of Keras 2 can do and those of Keras 3 cannot; a base before Keras' class."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._predict_graph = None

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

    def fit(self, x=None, y=None, *args, validation_data=None, validation_steps=None, **kwargs):
        """See `keras.Model.fit`. Batches of a generator may have any widths."""
        with Batches() as batches:
            x = batches.as_dataset(x)
            if isinstance(x, tf.data.Dataset):
                kwargs["shuffle"] = False  # which only the dataset itself could do
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
        with Batches() as batches:
            return super().evaluate(batches.as_dataset(x), y, *args, verbose=verbose, **kwargs)

    def evaluate_generator(self, generator, steps=None, verbose=0, **kwargs):
        """Runs `evaluate`."""
        return self.evaluate(generator, steps=steps, verbose=verbose)

    def train_step(self, data):
        """Runs one step; labels become float32, as the labels of Keras 2 are."""
        return super().train_step(_with_float_labels(data))

    def test_step(self, data):
        """Evaluates one batch; labels become float32, as the labels of Keras 2 are."""
        return super().test_step(_with_float_labels(data))

    # === Prediction ===

    def predict(self, x, batch_size=None, verbose=0, steps=None, callbacks=None, **kwargs):
        """Returns the outputs as an array, or as a list of arrays if there are several.

        Arrays of any width run in one graph. Shows no progress by default.

        Args:
            x: Array, list of arrays, dict of arrays by the names of the inputs, generator or
                `tf.data.Dataset`.
            batch_size: int, 32 by default.
            verbose, steps, callbacks: See `keras.Model.predict`.
            **kwargs: `workers` and others of Keras 2, which change nothing.
        """
        if is_generator(x):
            parts = [self._predict_arrays(next(x), batch_size) for _ in range(steps)]
            return _unwrapped([np.concatenate(part) for part in zip(*parts)])
        if isinstance(x, tf.data.Dataset) or callbacks or steps is not None:
            outputs = super().predict(x, batch_size, verbose, steps, callbacks)
            return _unwrapped(keras.tree.flatten(outputs))
        return _unwrapped(self._predict_arrays(x, batch_size))

    def predict_generator(self, generator, steps=None, **kwargs):
        """Runs `predict`."""
        return self.predict(generator, steps=steps)

    def predict_on_batch(self, x):
        """Returns the outputs of one batch, as `predict` does."""
        return _unwrapped(self._predict_arrays(x, None, whole=True))

    def _predict_arrays(self, x, batch_size, whole=False):
        if isinstance(x, dict):
            x = [x[tensor.name] for tensor in self.inputs]
        arrays = [np.asarray(array) for array in keras.tree.flatten(x)]
        size, step = len(arrays[0]), batch_size or 32
        if whole or size <= step:
            return [output.numpy() for output in self._run(arrays)]
        rows = [
            [output.numpy() for output in self._run([array[i : i + step] for array in arrays])]
            for i in range(0, size, step)
        ]
        return [np.concatenate(parts) for parts in zip(*rows)]

    def _run(self, arrays):
        if getattr(self, "_predict_graph", None) is None:
            self._predict_graph = self._make_predict_graph()
        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"Model {self.name!r} has {len(self.inputs)} inputs: "
                f"{', '.join(tensor.name for tensor in self.inputs)}. Received: {len(arrays)} arrays"
            )
        pairs = zip(arrays, self.inputs)
        return self._predict_graph(*[tf.convert_to_tensor(x, tensor.dtype) for x, tensor in pairs])

    def _make_predict_graph(self):
        specs = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in self.inputs]

        @tf.function(input_signature=specs, autograph=False)
        def predict(*inputs):
            inputs = keras.tree.pack_sequence_as(self.input, list(inputs))
            return keras.tree.flatten(self(inputs, training=False))

        return predict

    # === Weights ===

    def save_weights(self, filepath, overwrite=True, save_format=None):
        """Saves the weights to one file of any name, complete or not at all.

        Args:
            filepath: str or path, such as `"best_model.weights"`.
            overwrite: bool. Whether to replace a file that is there.
            save_format: Ignored; the file is what Keras 3 calls `.weights.h5`.

        Raises:
            FileExistsError: If the file exists and `overwrite` is `False`.
        """
        path = Path(filepath)
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} already exists. Pass overwrite=True to replace it.")
        with tempfile.TemporaryDirectory() as folder:  # Keras 3 takes no other ending
            written = Path(folder, "model.weights.h5")
            super().save_weights(str(written))
            with replace_file(path) as file, open(written, "rb") as source:
                shutil.copyfileobj(source, file)

    def load_weights(self, filepath, by_name=False, skip_mismatch=False, reshape=False):
        """Loads a file of `save_weights`.

        Args:
            filepath: str or path of any name.
            by_name, reshape: Ignored; Keras 3 finds weights by the place of their layer.
            skip_mismatch: bool. Whether to leave weights of another shape as they are.

        Raises:
            ValueError: If Keras 2 or bert4keras wrote the file.
        """
        path = Path(filepath).absolute()
        if not path.is_file():
            raise FileNotFoundError(f"There is no file of weights {str(filepath)!r}.")
        check_weights_of_keras_3(path)
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, "model.weights.h5")
            link.symlink_to(path)
            super().load_weights(str(link), skip_mismatch=skip_mismatch)


class FunctionalModel(_Keras2Methods, Functional):
    """What `Model(inputs, outputs)` returns."""

    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(_single(inputs), _single(outputs), name=name, **kwargs)

    def _standardize_inputs(self, inputs):
        if isinstance(inputs, list | tuple):  # datasets have tuples, and Keras 2 lists of one
            inputs = _single(list(inputs))
        return super()._standardize_inputs(inputs)

    def _assert_input_compatibility(self, inputs):
        if isinstance(inputs, list | tuple):
            inputs = _single(list(inputs))
        super()._assert_input_compatibility(inputs)


class Model(_Keras2Methods, keras.Model):
    """`keras.Model` with the methods of Keras 2.

    Args:
        *args, **kwargs: `inputs`, `outputs` and `name`; or nothing, in a subclass.

    Example:

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


class _PlainLoss(keras.losses.Loss):
    """Calls a function with labels and outputs as they are."""

    def __init__(self, function):
        name = re.sub(r"\W", "", getattr(function, "__name__", ""))
        super().__init__(name=name or "loss")
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)


def _plain_loss(loss):
    is_function = callable(loss) and not isinstance(loss, keras.losses.Loss)
    return _PlainLoss(loss) if is_function and not inspect.isclass(loss) else loss


def _with_float_labels(data):
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    if y is None:
        return data

    def cast(label):
        return tf.cast(label, keras.config.floatx()) if label.dtype != tf.string else label

    return keras.utils.pack_x_y_sample_weight(x, keras.tree.map_structure(cast, y), weights)


def _single(tensors):
    """Returns the tensor of a list of one."""
    return tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors


def _unwrapped(arrays):
    return arrays[0] if len(arrays) == 1 else list(arrays)


def check_weights_of_keras_3(path):
    """Raises `ValueError` if a file of weights does not have the layout of Keras 3."""
    import h5py

    if not h5py.is_hdf5(path):
        return  # Keras says what is wrong
    with h5py.File(path) as file:
        is_old = "layer_names" in file.attrs or "model_weights" in file
    if is_old:
        raise ValueError(
            f"{path} was written by Keras 2, whose layers are different. In the old environment, "
            "write it with bert4keras' `save_weights_as_checkpoint`, and pass that file as "
            "`checkpoint_path` of `build_transformer_model`."
        )


def __getattr__(name):
    raise missing_name(__name__, name, {}, "Keras 3 has no such name: see keras.io/api/models.")
