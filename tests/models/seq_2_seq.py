"""A small translation model with random weights, its tokenizer, and its float64 oracle."""

import functools

import numpy as np

import roformer_tf
from roformer_tf import rotary
from roformer_tf.text import train_sentencepiece
from tests.layers import decoder_cases as decoder
from tests.layers.harness import randomize, weights_by_path
from tests.models.builders import shared_preprocessor

TEXTS = ["a cat and a dog", "a dog ran", "eine Katze und ein Hund", "ein Hund lief", "a", "ein"]
SIZES = {
    "vocabulary_size": 40,
    "num_layers": 2,
    "num_heads": decoder.HEADS,
    "hidden_dim": decoder.H,
    "intermediate_dim": 24,
}


@functools.cache
def tokenizer():
    return roformer_tf.RoFormerSentencePieceTokenizer(
        train_sentencepiece(TEXTS, SIZES["vocabulary_size"])
    )


def backbone(position_scheme="rotary", **options):
    model = roformer_tf.RoFormerSeq2SeqBackbone(
        position_scheme=position_scheme, name="backbone", **{**SIZES, **options}
    )
    randomize(model)
    # as large beside the sines as in a real model, and logits that leave something to choose
    table = model.token_embedding.embeddings
    table.assign(table.value * 0.25)
    return model


def translator(position_scheme="rotary", preprocessing=None, **options):
    preprocessor = shared_preprocessor(
        roformer_tf.RoFormerSeq2SeqLMPreprocessor, tokenizer(), **(preprocessing or {})
    )
    return roformer_tf.RoFormerSeq2SeqLM(backbone(position_scheme, **options), preprocessor)


def inputs(rng, batch=3, source_length=7, length=6):
    """Random tokens, none of them special. All sequences but the first end in padding."""

    def side(name, length):
        ids = rng.integers(4, SIZES["vocabulary_size"], (batch, length)).astype("int32")
        ids[:, 0] = 2
        lengths = [length, *rng.integers(2, length + 1, batch - 1)]
        mask = (np.arange(length) < np.array(lengths)[:, None]).astype("int32")
        return {f"{name}_token_ids": ids * mask, f"{name}_padding_mask": mask}

    return {**side("encoder", source_length), **side("decoder", length)}


def oracle_logits(model, inputs):
    """Logits in float64, from the equations of Vaswani et al. and of the RoFormer paper."""
    weights = weights_by_path(model)
    table = weights["token_embedding/embeddings"]
    sinusoidal = model.position_scheme_name == "sinusoidal"

    def of(name):
        return {k.removeprefix(f"{name}/"): v for k, v in weights.items() if k.startswith(name)}

    def embed(ids):
        x = table[ids] * np.sqrt(model.hidden_dim)
        if sinusoidal:
            angle = np.arange(ids.shape[1])[:, None] * rotary.frequencies(model.hidden_dim)
            x = x + np.stack([np.sin(angle), np.cos(angle)], -1).reshape(*angle.shape[:1], -1)
        return x

    def bias(visible):
        return np.where(visible, 0.0, -1e9)[:, None]

    def block(x, name, *others):
        positions = np.zeros(x.shape[1]) if sinusoidal else np.arange(x.shape[1])
        return decoder.block(of(name), x, positions, model.layer_norm_epsilon, *others)

    source_bias = bias(inputs["encoder_padding_mask"][:, None] == 1)
    encoder_sequence = embed(inputs["encoder_token_ids"])
    for i in range(model.num_layers):
        encoder_sequence = block(encoder_sequence, f"encoder_block_{i}", source_bias)
    mask = inputs["decoder_padding_mask"][:, None] == 1
    causal = bias(mask & (np.tri(mask.shape[-1])[None] == 1))
    x = embed(inputs["decoder_token_ids"])
    for i in range(model.num_decoder_layers):
        x = block(x, f"decoder_block_{i}", causal, encoder_sequence, source_bias)
    return x @ table.T
