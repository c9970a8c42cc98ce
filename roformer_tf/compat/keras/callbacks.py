"""`keras.callbacks`, of which a script may set the `model`."""

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


__getattr__ = names_not_offered(
    __name__, {}, "Keras 3 has no such callback: see keras.io/api/callbacks."
)
