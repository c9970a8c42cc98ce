"""Training SentencePiece, and the tokenizer compared with the SentencePiece library."""

import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from roformer_tf.text import RoFormerSentencePieceTokenizer, train_sentencepiece

TEXTS = [
    "A cat and a dog.",
    "Eine Katze und ein Hund!",
    "the dog saw the other dog",
    "die Katze sah den anderen Hund",
    "naïve ﬁne Größe ½",
    "an old house stands near a small river where many people walked under tall trees",
] * 3
KINDS = pytest.mark.parametrize("kind", ["bpe", "unigram"])


@pytest.fixture(scope="module")
def protos():
    return {kind: train_sentencepiece(TEXTS, 60, kind) for kind in ("bpe", "unigram")}


@KINDS
def test_training_is_repeatable(protos, kind):
    assert train_sentencepiece(iter(TEXTS), 60, kind) == protos[kind]
    assert b"rules.tsv" not in protos[kind]  # no local path


@KINDS
def test_equals_the_library(protos, kind):
    tokenizer = RoFormerSentencePieceTokenizer(protos[kind])
    peer = sentencepiece.SentencePieceProcessor(model_proto=protos[kind])
    texts = [*TEXTS[:6], "a hound 猫", "", "  two  spaces "]
    expected = peer.encode(texts)
    assert tokenizer(texts) == expected
    assert tokenizer(np.array(texts)) == tokenizer([t.encode() for t in texts]) == expected
    assert list(tokenizer(texts[0])) == expected[0]
    in_graph = next(iter(tf.data.Dataset.from_tensor_slices(texts).batch(9).map(tokenizer)))
    assert in_graph.to_list() == expected
    assert tokenizer.detokenize(expected) == peer.decode(expected)
    assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.vocabulary_size() == 60


def test_texts_are_restored_letter_by_letter(protos):
    """SentencePiece's default NFKC would give `fine` and `1⁄2`. No-break spaces become spaces."""
    tokenizer = RoFormerSentencePieceTokenizer(protos["bpe"])
    assert tokenizer.detokenize(tokenizer(TEXTS)) == TEXTS
    assert tokenizer.detokenize(tokenizer(["a\u00a0cat\u202fand\u2007a dog"])) == [
        "a cat and a dog"
    ]


def test_unknown_characters(protos):
    tokenizer = RoFormerSentencePieceTokenizer(protos["bpe"])
    assert 1 in tokenizer("a 猫")
    with_bytes = train_sentencepiece(TEXTS, 320, byte_fallback=True)
    tokenizer = RoFormerSentencePieceTokenizer(with_bytes)
    assert 1 not in tokenizer("a 猫") and tokenizer.detokenize(tokenizer(["a 猫"])) == ["a 猫"]


def test_long_texts_are_not_dropped():
    """By default SentencePiece silently drops texts longer than 4,192 bytes."""
    proto = train_sentencepiece(["a b c " * 2000 + "Q", "a b"], vocabulary_size=12)
    tokenizer = RoFormerSentencePieceTokenizer(proto)
    assert tokenizer.detokenize(tokenizer("Q a")) == "Q a"


def test_saved(protos, tmp_path):
    tokenizer = RoFormerSentencePieceTokenizer(protos["bpe"])
    tokenizer.save_assets(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"vocabulary.spm"}
    loaded = RoFormerSentencePieceTokenizer()
    loaded.load_assets(tmp_path)
    assert loaded(TEXTS) == tokenizer(TEXTS)
    assert RoFormerSentencePieceTokenizer(tmp_path / "vocabulary.spm")(TEXTS) == loaded(TEXTS)


def test_errors(protos):
    with pytest.raises(ValueError, match="do not give a vocabulary of 5000 subwords"):
        train_sentencepiece(TEXTS, 5000)
    foreign = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=foreign, vocab_size=60, minloglevel=2
    )
    with pytest.raises(ValueError, match="find special token.*<pad>"):
        RoFormerSentencePieceTokenizer(foreign.getvalue())
    with pytest.raises(TypeError):
        RoFormerSentencePieceTokenizer(protos["bpe"])([1, 2])
    with pytest.raises(ValueError, match="5 bytes that begin with b'wrong'"):
        RoFormerSentencePieceTokenizer(b"wrong")
    with pytest.raises(FileNotFoundError, match="nowhere.spm is missing: it is the SentencePiece"):
        RoFormerSentencePieceTokenizer(Path("nowhere.spm"))
