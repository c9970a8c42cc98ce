"""`bert4keras.layers`: its heads and losses, and all layers of Keras."""

import numpy as np  # noqa: F401
import tensorflow as tf
from keras import activations, initializers  # noqa: F401
from keras.saving import register_keras_serializable

import roformer_tf.compat.keras.layers as keras_layers
from roformer_tf import layers
from roformer_tf.compat import names_not_offered
from roformer_tf.compat.bert4keras.backend import (  # noqa: F401
    K,
    align,
    is_tf_keras,
    keras,
    sequence_masking,
)

MINUS_INFINITY = float("-inf")
# bert4keras has layers of its own under these names
_NOT_KERAS = ("MultiHeadAttention", "LayerNormalization", "Embedding", "Layer")
_KERAS = [name for name in dir(keras_layers) if name[0].isupper() and name not in _NOT_KERAS]
_KERAS += "add average concatenate dot maximum minimum multiply subtract".split()
globals().update({name: getattr(keras_layers, name) for name in _KERAS})


class Layer(keras_layers.Layer):
    """`keras.layers.Layer` that passes masks on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True


class Loss(Layer):
    """A layer that adds a loss of its inputs to the model, and passes inputs on.

    Subclasses implement `compute_loss(inputs, mask)`, which may call `add_metric`. A model that
    contains it is compiled without a loss and trained without targets.

    Args:
        output_axis: int or list of int. Which of the inputs are the outputs; all by default.

    >>> import numpy as np
    >>> from roformer_tf.compat.bert4keras.backend import K, keras
    >>> class MeanSquare(Loss):
    ...     def compute_loss(self, inputs, mask=None):
    ...         y_true, y_pred = inputs
    ...         return K.mean(K.square(y_true - y_pred))
    >>> x, y = keras.layers.Input((1,)), keras.layers.Input((1,))
    >>> model = keras.models.Model([x, y], MeanSquare(1)([y, keras.layers.Dense(1)(x)]))
    >>> model.compile("sgd")
    >>> bool(model.train_on_batch([np.ones((4, 1)), np.zeros((4, 1))]) >= 0)
    True
    """

    def __init__(self, output_axis=None, **kwargs):
        super().__init__(**kwargs)
        self.output_axis = output_axis

    def _chosen(self, parts):
        if self.output_axis is None:
            return parts
        if isinstance(self.output_axis, list):
            return [parts[i] for i in self.output_axis]
        return parts[self.output_axis]

    def call(self, inputs, mask=None):
        self.add_loss(self.compute_loss(inputs, mask))
        return self._chosen(inputs)

    def compute_loss(self, inputs, mask=None):
        """Returns the loss: a scalar, or one number for each example."""
        raise NotImplementedError

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else self._chosen(mask)

    def get_config(self):
        return {**super().get_config(), "output_axis": self.output_axis}


class _Arguments:
    """Mixin with bert4keras' names of the arguments of the span layers."""

    def __init__(
        self,
        heads,
        head_size,
        RoPE=True,
        use_bias=True,
        tril_mask=True,
        kernel_initializer="lecun_normal",
        **kwargs,
    ):
        super().__init__(heads, head_size, RoPE, use_bias, tril_mask, kernel_initializer, **kwargs)
        self.heads, self.head_size, self.RoPE = heads, head_size, RoPE

    def call(self, x, padding_mask=None, mask=None):
        return super().call(x, mask if padding_mask is None else padding_mask)

    def compute_output_spec(self, x, padding_mask=None, mask=None):
        return super().compute_output_spec(x, padding_mask)

    def get_config(self):
        names = {"num_heads": "heads", "head_dim": "head_size", "use_rope": "RoPE"}
        return {names.get(name, name): value for name, value in super().get_config().items()}


@register_keras_serializable(package="bert4keras")
class GlobalPointer(_Arguments, layers.GlobalPointer):
    """`roformer_tf.layers.GlobalPointer` by bert4keras' names of its arguments.

    `heads`, `head_size` and `RoPE` are its `num_heads`, `head_dim` and `use_rope`, and `mask` in a
    call is its `padding_mask`.

    >>> import numpy as np
    >>> tuple(GlobalPointer(3, 8)(np.ones((2, 5, 16), "float32")).shape)
    (2, 3, 5, 5)
    """


@register_keras_serializable(package="bert4keras")
class EfficientGlobalPointer(_Arguments, layers.EfficientGlobalPointer):
    """`roformer_tf.layers.EfficientGlobalPointer` with the arguments of `GlobalPointer` above."""


@register_keras_serializable(package="bert4keras")
class ConditionalRandomField(Layer):
    """Learns a score for each pair of neighboring tags. Its outputs are the scores of the tags.

    Args:
        lr_multiplier: float. Factor of the learning rate of the scores of pairs.

    Call arguments:
        inputs: Tensor `(batch, length, tags)`.
        mask: bool tensor `(batch, length)`, or `None`.

    Returns:
        `inputs`, with minus infinity at padding. Train with `sparse_loss`, and decode with
        `ViterbiDecoder`.

    >>> import numpy as np
    >>> crf = ConditionalRandomField()
    >>> x = crf(np.zeros((1, 3, 2), "float32"))
    >>> crf.set_weights([np.zeros((2, 2))])
    >>> bool(abs(float(crf.sparse_loss(np.array([[0, 1, 1]]), x)[0]) - np.log(8)) < 1e-6)
    True

    Reference: `roformer_tf.layers.ConditionalRandomField`, which computes the loss.
    """

    def __init__(self, lr_multiplier=1, **kwargs):
        super().__init__(**kwargs)
        self.lr_multiplier = lr_multiplier
        self.crf = layers.ConditionalRandomField(lr_multiplier, name="crf")

    def build(self, input_shape):
        self.crf.build(input_shape)
        self.built = True

    @property
    def trans(self):
        """Scores `(tag before, tag)`."""
        return tf.convert_to_tensor(self.crf.transitions) * self.lr_multiplier

    def call(self, inputs, mask=None):
        return sequence_masking(inputs, mask, MINUS_INFINITY, 1)

    def compute_mask(self, inputs, mask=None):
        return None  # minus infinity in the outputs marks padding

    def sparse_loss(self, y_true, y_pred):
        """Returns the loss of each sequence, from tags `(batch, length)`."""
        mask = tf.reduce_all(y_pred > MINUS_INFINITY, axis=2)
        tags = tf.cast(K.reshape(y_true, tf.shape(y_pred)[:-1]), "int32")
        pairs = self.crf(tf.where(mask[..., None], y_pred, 0.0), padding_mask=mask)
        return layers.ConditionalRandomFieldLoss().call(tf.where(mask, tags, -1), pairs)

    def dense_loss(self, y_true, y_pred):
        """Returns the loss of each sequence, from tags as one-hot vectors."""
        return self.sparse_loss(tf.argmax(y_true, axis=2), y_pred)

    def sparse_accuracy(self, y_true, y_pred):
        """Returns the share of tokens whose true tag has the highest score."""
        mask = tf.cast(tf.reduce_all(y_pred > MINUS_INFINITY, axis=2), K.floatx())
        tags = tf.cast(K.reshape(y_true, tf.shape(y_pred)[:-1]), "int64")
        right = tf.cast(tf.equal(tags, tf.argmax(y_pred, axis=2)), K.floatx())
        return tf.reduce_sum(right * mask) / tf.reduce_sum(mask)

    def dense_accuracy(self, y_true, y_pred):
        """Returns `sparse_accuracy` of tags as one-hot vectors."""
        return self.sparse_accuracy(tf.argmax(y_true, axis=2), y_pred)

    def get_config(self):
        return {**super().get_config(), "lr_multiplier": self.lr_multiplier}


_OWN = ("Layer", "Loss", "GlobalPointer", "EfficientGlobalPointer", "ConditionalRandomField")
_IMPORTED = "K activations align initializers is_tf_keras keras np sequence_masking tf".split()
__all__ = [*_KERAS, *_OWN, *_IMPORTED]
_HINTS = {
    "MultiHeadAttention": "Use roformer_tf.layers.RotaryMultiHeadAttention.",
    "LayerNormalization|ScaleOffset": (
        "Use `keras.layers.LayerNormalization` or roformer_tf.layers.RMSNorm."
    ),
    "Embedding": "Use roformer_tf.layers.TokenEmbedding; `reverse=True` is `mode='dense'`.",
    "FeedForward": "Use roformer_tf.layers.FeedForward.",
    ".*PositionEmbedding.*": "Use a position scheme: docs/position_schemes.md.",
    "GatedAttentionUnit": "There is none. Use roformer_tf.layers.EncoderBlock.",
    "MaximumEntropyMarkovModel": "Use `ConditionalRandomField`.",
    "Concatenate1D": "Use `keras.layers.Concatenate(axis=1)`.",
    "BatchSplit|BatchConcat": "Use `tf.distribute.MirroredStrategy`.",
}
__getattr__ = names_not_offered(__name__, _HINTS)
