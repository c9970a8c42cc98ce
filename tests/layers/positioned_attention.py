"""Attention together with its position scheme, as a model calls them."""

import keras
from keras import ops

from roformer_tf import layers


@keras.saving.register_keras_serializable(package="tests")
class PositionedAttention(keras.layers.Layer):
    """A `SelfAttention` that calls its own position scheme.

    Args:
        attention: `SelfAttention`.

    Call arguments:
        x: tensor `(batch, length, hidden_dim)`.
        position_ids: tensor `(batch, length)`, or `None` for 0, 1, 2, …
        attention_bias: of `SelfAttention`.
    """

    def __init__(self, attention, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.attention = attention

    def build(self, x_shape, *shapes, **named_shapes):
        if not self.attention.built:  # a layer that was loaded is built
            self.attention.build(x_shape)
        self.built = True

    def call(self, x, position_ids=None, attention_bias=None):
        token_ids = ops.zeros(ops.shape(x)[:2], "int32")
        position = self.attention.position_scheme(token_ids, position_ids)
        return self.attention(x, attention_bias=attention_bias, position=position)

    def compute_output_spec(self, x, position_ids=None, attention_bias=None):
        return self.attention.compute_output_spec(x)

    def get_config(self):
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    @classmethod
    def from_config(cls, config):
        attention = keras.saving.deserialize_keras_object(config.pop("attention"))
        return cls(attention, **config)


def positioned(make_scheme, heads, head_dim):
    """A function that makes a `PositionedAttention`; `make_scheme(**kwargs)` makes its scheme."""

    def make(dtype="float32", **kwargs):
        scheme = make_scheme(dtype=dtype, name="position_scheme")
        options = {"position_scheme": scheme, "dtype": dtype, "name": "attention"}
        attention = layers.SelfAttention(heads, head_dim, **options)
        return PositionedAttention(attention, dtype=dtype, **kwargs)

    return make
