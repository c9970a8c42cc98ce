"""Puts rotary positions into an attention layer of your own.

    python examples/own_attention.py

It learns to repeat the token that came three tokens before, which attention without positions
cannot.
"""

import roformer_tf  # noqa: F401  # isort: skip  (before Keras: it keeps TensorFlow quiet)
import keras
import numpy as np
from keras import ops

from roformer_tf.layers import RotaryEmbedding


class Attention(keras.layers.Layer):
    def __init__(self, num_heads, head_dim, rotary=True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.qkv = keras.layers.Dense(3 * num_heads * head_dim)
        self.rotate = RotaryEmbedding() if rotary else keras.layers.Identity()

    def call(self, x):
        batch, length, _ = ops.shape(x)
        shape = (batch, length, 3 * self.num_heads, self.head_dim)
        query, key, value = ops.split(ops.reshape(self.qkv(x), shape), 3, axis=2)
        x = ops.dot_product_attention(self.rotate(query), self.rotate(key), value)
        return ops.reshape(x, (batch, length, self.num_heads * self.head_dim))


def main():
    tokens = np.random.default_rng(0).integers(0, 16, size=(512, 24))
    targets = np.roll(tokens, 3, axis=1)
    for rotary in (True, False):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((24,), dtype="int32")
        x = keras.layers.Embedding(16, 64)(inputs)
        x = Attention(num_heads=2, head_dim=32, rotary=rotary)(x)
        model = keras.Model(inputs, keras.layers.Dense(16, activation="softmax")(x))
        model.compile(
            keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        history = model.fit(tokens, targets, epochs=20, verbose=0)
        accuracy = history.history["accuracy"][-1]
        print(f"{'with' if rotary else 'without'} rotary positions: {accuracy:.0%} right")


if __name__ == "__main__":
    main()
