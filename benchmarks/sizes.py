"""Sizes of the measured model, the batches it is given, and how much work they are."""

from dataclasses import dataclass

import numpy as np

MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Sizes:
    """A RoFormer (v1); the defaults are the released word model, `chinese_roformer_L-12_H-768_A-12`."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    intermediate: int = 3072
    vocabulary: int = 50000

    def config(self):
        """Returns the content of the original's `bert_config.json`."""
        return {
            "attention_probs_dropout_prob": 0.1,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": self.width,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": 1536,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "type_vocab_size": 2,
            "vocab_size": self.vocabulary,
        }

    def hugging_face_config(self):
        """Returns the arguments of Transformers' `RoFormerConfig`."""
        return {**self.config(), "embedding_size": self.width}

    def backbone_arguments(self):
        """Returns the arguments of `RoFormerBackbone`."""
        return {"vocabulary_size": self.vocabulary, **self.encoder_arguments()}

    def encoder_arguments(self):
        """Returns the same arguments without the size of the vocabulary."""
        return {
            "num_layers": self.layers,
            "num_heads": self.heads,
            "hidden_dim": self.width,
            "intermediate_dim": self.intermediate,
        }

    def inference_flops(self, batch, length):
        """Counts the multiplications and additions of the encoder's matrix products in a forward pass."""
        per_token = 2 * (4 * self.width**2 + 2 * self.width * self.intermediate)
        attention = 2 * 2 * length * self.width
        return batch * length * self.layers * (per_token + attention)

    def step_flops(self, batch, length):
        """Counts those of a training step: a backward pass is two forward ones; logits at masked positions only."""
        per_position = 2 * self.width * (self.width + self.vocabulary)
        head = batch * masked_count(length) * per_position
        return 3 * (self.inference_flops(batch, length) + head)


BASE = Sizes()
MEDIUM = Sizes(layers=6, heads=8, width=512, intermediate=2048)
QUICK = Sizes(layers=1, heads=2, width=64, intermediate=128, vocabulary=500)
TINY = Sizes(layers=1, heads=2, width=32, intermediate=64)


def masked_count(length):
    """Returns the number of positions to predict in a row."""
    return round(MASKED_SHARE * length)


def make_batch(seed, sizes, batch, length):
    """Makes random token ids without padding, the positions to predict, and what to predict there."""
    rng = np.random.default_rng([seed, batch, length])
    rows = [rng.permutation(length)[: masked_count(length)] for _ in range(batch)]
    positions = np.sort(rows, axis=1).astype("int32")
    return {
        "token_ids": rng.integers(5, sizes.vocabulary, (batch, length)).astype("int32"),
        "segment_ids": np.zeros((batch, length), "int32"),
        "padding_mask": np.ones((batch, length), "int32"),
        "mask_positions": positions,
        "labels": rng.integers(5, sizes.vocabulary, positions.shape).astype("int32"),
    }


def labels_everywhere(batch, elsewhere):
    """Makes labels `(batch, length)` for peers that project every position: `elsewhere` where none is predicted."""
    labels = np.full(batch["token_ids"].shape, elsewhere, "int64")
    np.put_along_axis(labels, batch["mask_positions"].astype("int64"), batch["labels"], axis=1)
    return labels
