"""Models and their weights in files of any name."""

import contextlib
import shutil
import tempfile
import zipfile
from pathlib import Path

import keras

from roformer_tf.compat import is_tf_keras
from roformer_tf.files import replace_file


def save_model(model, filepath, overwrite=True, include_optimizer=True, save_format=None):
    """Saves a model and its optimizer to one file of any name, complete or not at all.

    `include_optimizer` and `save_format` are ignored: the file is what Keras 3 calls `.keras`.

    Raises:
        FileExistsError: If the file exists and `overwrite` is `False`.
    """
    with _written(filepath, overwrite, "model.keras") as path:
        keras.saving.save_model(model, path)


def load_model(filepath, custom_objects=None, compile=True, safe_mode=True):
    """Loads a file of `save_model`. See `keras.saving.load_model`.

    Training goes on where it stopped. If the loss, a metric or the optimizer cannot be found, there
    is a warning, and the model is not compiled.

    Raises:
        ValueError: If Keras 2 wrote the file, or the model has a Python lambda and `safe_mode` is
            `True`.
    """
    path = Path(filepath).absolute()
    if path.is_file() and _is_model(path):
        with _linked(path, "model.keras") as link:
            return keras.saving.load_model(link, custom_objects, compile, safe_mode)
    is_hdf5 = path.is_file() and check_not_of_keras_2(path)
    try:
        return keras.saving.load_model(filepath, custom_objects, compile, safe_mode)
    except (TypeError, ValueError) as error:
        if not is_hdf5:
            raise
        raise ValueError(
            f"Keras 3 cannot make a model of the HDF5 file {path}: {error} Make the model as the "
            "program that wrote it did, and load the file with its `load_weights`."
        ) from error


class FileMethods:
    """Mixin: `save`, `save_weights` and `load_weights` of a model."""

    save = save_model

    def save_weights(self, filepath, overwrite=True, save_format=None):
        """Saves the weights to one file of any name, complete or not at all.

        `save_format` is ignored: the file is what Keras 3 calls `.weights.h5`. The optimizer is in
        it where Keras 2 saves it, with TF_KERAS=1 and unless the name ends in `.h5`; and where
        Keras 3 does, if the name ends in `.weights.h5`.

        Raises:
            FileExistsError: If the file exists and `overwrite` is `False`.
        """
        with _written(filepath, overwrite, "model.weights.h5") as path:
            keras.saving.save_weights(self, path, objects_to_skip=_left_out(self, filepath))

    def load_weights(self, filepath, by_name=False, skip_mismatch=False, reshape=False):
        """Loads a file of `save_weights`, or the weights of a file of `save`.

        The optimizer stays as it is, unless `save_weights` saves it under this name.

        `by_name` and `reshape` are ignored: Keras 3 finds weights by the place of their layer.
        `skip_mismatch=True` leaves weights of another shape as they are.

        Raises:
            ValueError: If Keras 2 or bert4keras wrote the file.
        """
        path = Path(filepath).absolute()
        if not path.is_file():
            # tf.keras saves so unless the name ends in .h5
            if path.with_name(f"{path.name}.index").is_file():
                raise ValueError(_of_keras_2(path))
            raise FileNotFoundError(f"There is no file of weights {str(filepath)!r}.")
        options = {"objects_to_skip": _left_out(self, path)}
        with contextlib.ExitStack() as stack:
            if _is_model(path):
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                with zipfile.ZipFile(path) as archive:
                    path = Path(archive.extract("model.weights.h5", folder))
            elif check_not_of_keras_2(path):
                path, options = stack.enter_context(_linked(path, "model.h5")), {}
            else:
                path = stack.enter_context(_linked(path, "model.weights.h5"))
            super().load_weights(str(path), skip_mismatch=skip_mismatch, **options)


def _is_model(path):
    """Whether a file is a ZIP file, as those of `save_model` are.

    `zipfile.is_zipfile` looks at the end of a file, which may be any weights.
    """
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _left_out(model, path):
    """Returns the objects that are not in a file of weights of this name."""
    name = Path(path).name
    is_kept = is_tf_keras and not name.endswith((".h5", ".hdf5", ".keras"))
    if is_kept or name.endswith(".weights.h5"):
        return []
    return [getattr(model, "optimizer", None)]


@contextlib.contextmanager
def _written(path, overwrite, name):
    """Yields a path with a name that Keras writes to; in the end writes the file to `path`."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} already exists. Pass overwrite=True to replace it.")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, name)
        with replace_file(path) as file, open(Path(folder, name), "rb") as source:
            shutil.copyfileobj(source, file)


@contextlib.contextmanager
def _linked(path, name):
    """Yields a path of the same file with a name that Keras reads."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, name)
        try:
            link.symlink_to(path)
        except OSError:  # Windows has links for administrators and developers only
            shutil.copyfile(path, link)
        yield link


def check_not_of_keras_2(path):
    """Raises `ValueError` if Keras 2 wrote a file.

    Returns whether Keras 3 wrote it in the layout of Keras 2, as plain Keras does if a name ends in
    `.h5`.
    """
    import h5py

    if not h5py.is_hdf5(path):
        return False  # Keras says what is wrong
    with h5py.File(path) as file:
        has_old_layout = "layer_names" in file.attrs or "model_weights" in file
        version = file.attrs.get("keras_version", "2")
    if has_old_layout and version[:1] not in ("3", b"3"):
        raise ValueError(_of_keras_2(path))
    return has_old_layout


def _of_keras_2(path):
    return (
        f"{path} was written by Keras 2, whose layers are different. In the old environment, "
        "write it with bert4keras' `save_weights_as_checkpoint` (on TensorFlow 2 as "
        "docs/moving_from_bert4keras.md says), and pass that file as `checkpoint_path` of "
        "`build_transformer_model`."
    )
