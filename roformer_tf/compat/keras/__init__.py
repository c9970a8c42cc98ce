"""Keras 3 by the names and with the habits of Keras 2, as scripts for bert4keras use it.

Everything is Keras' own, except `Model`, `save_model`, `load_model`, `Layer`, `Lambda`,
`GlobalMaxPooling1D`, `TimeDistributed`, `Callback`, `ModelCheckpoint` and `backend`.
"""

import sys

import keras

from roformer_tf.compat import names_not_offered

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "roformer_tf.compat runs on TensorFlow, as bert4keras does. Set KERAS_BACKEND=tensorflow. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )

from roformer_tf.compat.keras import backend, callbacks, layers, losses, models  # noqa: E402, F401
from roformer_tf.compat.keras.models import Model  # noqa: E402, F401

# so that `from roformer_tf.compat.keras.utils import to_categorical` finds them
for _name in (
    "activations applications constraints datasets initializers metrics optimizers preprocessing "
    "regularizers utils"
).split():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = getattr(keras, _name)

__version__ = keras.__version__
_HINTS = {
    "engine": "Use `keras.layers.Layer` and `keras.models.Model`.",
    "wrappers|estimator": "Use `keras.wrappers` of Keras 3 (`import keras`).",
}
_missing = names_not_offered(__name__, _HINTS, "Keras 3 has no such name: see keras.io/api.")


def __getattr__(name):
    if not name.startswith("__") and hasattr(keras, name):
        return getattr(keras, name)
    return _missing(name)
