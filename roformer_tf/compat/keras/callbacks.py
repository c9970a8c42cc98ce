"""`keras.callbacks`, of which a script may set the `model`."""

import os

import keras
from keras.callbacks import *  # noqa: F403

from roformer_tf.compat import names_not_offered


class Callback(keras.callbacks.Callback):
    """`keras.callbacks.Callback`, whose `__init__` may set `self.model`, as in Keras 2.

    >>> class Evaluator(Callback):
    ...     def __init__(self, model):
    ...         self.model = model
    >>> Evaluator("a model").model
    'a model'
    """

    @property
    def model(self):
        return super().model

    @model.setter
    def model(self, model):
        self.set_model(model)


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint`, whose file may have any name.

    >>> ModelCheckpoint("best.weights", save_weights_only=True).filepath
    'best.weights'
    """

    def __init__(self, filepath, *args, **kwargs):
        super().__init__("any.weights.h5", *args, **kwargs)
        self.filepath = os.fspath(filepath)


__getattr__ = names_not_offered(
    __name__, {}, "Keras 3 has no such callback: see keras.io/api/callbacks."
)
