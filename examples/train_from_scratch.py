"""Trains a small GPT and a small encoder, built from the layers, on the bytes of a text.

    python examples/train_from_scratch.py FILE
    KERAS_BACKEND=jax python examples/train_from_scratch.py FILE

FILE is any text, by default the README. The GPT predicts the next byte, the encoder the bytes that
are hidden from it.
"""

import argparse
from pathlib import Path

import roformer_tf  # noqa: F401  # isort: skip  (before Keras: it keeps TensorFlow quiet)
import keras
import numpy as np

from roformer_tf.layers import EncoderBlock, RotaryPosition

LENGTH, HIDDEN = 64, 256  # bytes of a sequence; the id that hides a byte


def model(causal, hidden_dim=64, num_layers=2):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(HIDDEN + 1, hidden_dim)(inputs)
    for _ in range(num_layers):
        scheme = RotaryPosition(head_dim=16)
        block = EncoderBlock(
            hidden_dim, 4 * hidden_dim, num_heads=4, position_scheme=scheme, causal=causal
        )
        x = block(x)
    model = keras.Model(inputs, keras.layers.Dense(256)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, weighted_metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("README.md"))
    parser.add_argument("--epochs", type=int, default=5)
    options = {"epochs": parser.parse_args().epochs, "batch_size": 32, "verbose": 2}

    keras.utils.set_random_seed(0)
    text = np.fromfile(parser.parse_args().file, "uint8")
    windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::8].astype("int32")

    print("GPT: the next byte")
    model(causal=True).fit(windows[:, :-1], windows[:, 1:], **options)

    print("Encoder: hidden bytes")
    hidden = np.random.default_rng(0).random(windows.shape) < 0.15
    weights = hidden.astype("float32")
    model(causal=False).fit(
        np.where(hidden, HIDDEN, windows), windows, sample_weight=weights, **options
    )


if __name__ == "__main__":
    main()
