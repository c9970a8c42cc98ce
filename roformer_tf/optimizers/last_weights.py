import os
import re
from pathlib import Path

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer

_NAME = re.compile(r"epoch-(\d{5,})\.weights\.h5")  # more digits from epoch 100,000 on


class LastWeights(keras.callbacks.Callback):
    """Keeps the weights of the last epochs as files, and averages them.

    Writes each file atomically. Use `steps_per_epoch` of `fit` to set the number of steps between
    checkpoints.

    Args:
        folder: str or path. Other files in it stay.
        keep: int. Number of files to keep.

    Raises:
        ValueError: If `keep` is not a positive integer.

    Example:

    >>> import tempfile
    >>> import keras
    >>> import numpy as np
    >>> from roformer_tf.optimizers import LastWeights
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> last = LastWeights(tempfile.mkdtemp(), keep=2)
    >>> x = np.ones((4, 1), "float32")
    >>> history = model.fit(x, x, epochs=3, verbose=0, callbacks=[last])
    >>> [file.name for file in last.files()]
    ['epoch-00002.weights.h5', 'epoch-00003.weights.h5']
    >>> last.average()

    Reference: section 4.1.2 of arXiv 2104.09864 and section 6.1 of Vaswani et al., arXiv
    1706.03762: the mean of the last 5 checkpoints.
    """

    def __init__(self, folder, keep=5):
        super().__init__()
        check_positive_integer("keep", keep)
        self.folder = Path(folder)
        self.keep = keep

    def files(self):
        """Returns the paths of the files, oldest first."""
        found = (path for path in self.folder.glob("epoch-*") if _NAME.fullmatch(path.name))
        return sorted(found, key=_epoch)

    def on_epoch_end(self, epoch, logs=None):
        """Writes a file and removes old ones, and those of later epochs of an earlier run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = epoch + 1
        new = self.folder / f"epoch-{number:05d}.weights.h5"
        temporary = self.folder / ".new.weights.h5"
        self.model.save_weights(temporary, overwrite=True)
        os.replace(temporary, new)
        for file in self.files():
            if not number - self.keep < _epoch(file) <= number:
                file.unlink()

    def average(self):
        """Sets the weights of the model to the means of the files.

        Raises:
            ValueError: If there are no files, or the callback has not been given to `fit`.
        """
        if self.model is None:
            raise ValueError(
                "`average` needs the model that was trained: give the callback to `fit` first, or "
                "call `average_weights(model, last_weights.files())`."
            )
        average_weights(self.model, self.files())


def _epoch(file):
    return int(_NAME.fullmatch(file.name)[1])


def average_weights(model, files):
    """Sets the weights of a model to the means of files, summed in float64 and rounded once.

    Args:
        model: The `keras.Model` that wrote the files. Weights that are not floating-point numbers
            come from the last file.
        files: paths written by `model.save_weights`.

    Raises:
        ValueError: If `files` is empty.

    Example:

    >>> import os, tempfile
    >>> import keras
    >>> import numpy as np
    >>> from roformer_tf.optimizers import average_weights
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    >>> files = [os.path.join(tempfile.mkdtemp(), "model.weights.h5") for _ in range(2)]
    >>> for value, file in zip((1.0, 4.0), files):
    ...     model.set_weights([np.full((1, 1), value)])
    ...     model.save_weights(file)
    >>> average_weights(model, files)
    >>> model.get_weights()[0].tolist()
    [[2.5]]
    """
    files = list(files)
    if not files:
        raise ValueError("`files` must name at least one file. Received: files=[]")
    weights = [w for w in model.weights if keras.backend.is_float_dtype(w.dtype)]
    sums = [np.zeros(w.shape, "float64") for w in weights]
    for file in files:
        model.load_weights(file)
        for total, weight in zip(sums, weights):
            total += ops.convert_to_numpy(ops.cast(weight.value, "float32"))
    for total, weight in zip(sums, weights):
        weight.assign(total / len(files))
