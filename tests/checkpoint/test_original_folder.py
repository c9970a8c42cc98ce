"""`from_preset` of checkpoints: models, overridden arguments, and errors of damaged folders."""

import json

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from tests.checkpoint.conftest import SPECIAL, random_folder
from tests.layers.harness import numpy

CHARACTERS = list("天气很好不坏我你他今明")
WORDS = ["天气", "今天", "明天"]


def make_folder(path, rng, words=()):
    tokens = [*SPECIAL, *CHARACTERS, *words]
    return random_folder(path, rng, heads=("mlm",), tokens=tokens, vocab_size=len(tokens))


@pytest.fixture
def dictionary(tmp_path):
    """A dictionary of words for jieba's algorithm: its own takes seconds to prepare."""
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word} 10\n" for word in WORDS), encoding="utf-8")
    return str(path)


def test_backbone(folder):
    backbone = roformer_tf.RoFormerBackbone.from_preset(str(folder))
    assert backbone.pooler_activation == "tanh"  # there is a next-sentence head
    assert backbone.masking == "bidirectional"
    assert backbone.layer_norm_epsilon == 1e-12
    options = {"pooler": None, "layer_norm_epsilon": 1e-7, "dropout": 0.3, "name": "mine"}
    bare = roformer_tf.RoFormerBackbone.from_preset(folder, dtype="mixed_bfloat16", **options)
    assert bare.pooler is None and bare.layer_norm_epsilon == 1e-7 and bare.dropout == 0.3
    assert bare.compute_dtype == "bfloat16" and bare.name == "mine"


def test_v2(v2_folder):
    backbone = roformer_tf.RoFormerBackbone.from_preset(str(v2_folder))
    settings = (backbone.norm, backbone.activation, backbone.layer_norm_epsilon)
    assert settings == ("rms_norm", "relu", 1e-7)


def test_weights_can_be_left_random(folder):
    first, second = (
        roformer_tf.RoFormerBackbone.from_preset(folder, load_weights=w) for w in (False, True)
    )
    ours, theirs = (numpy(b.token_embedding.embeddings) for b in (first, second))
    assert np.abs(ours).max() < 0.05 < np.abs(theirs).max()


@pytest.mark.parametrize("words, word_level", [((), False), (WORDS, True)])
def test_task_with_preprocessor(rng, tmp_path, words, word_level, dictionary):
    folder = make_folder(tmp_path / "roformer", rng, words)
    task = roformer_tf.RoFormerTextClassifier.from_preset(
        str(folder),
        num_classes=3,
        dropout=0.0,
        sequence_length=16,
        pooling="mean",
        dictionary=dictionary,
    )
    assert task.preprocessor.tokenizer.word_level is word_level
    assert task.preprocessor.sequence_length == 16
    assert (task.num_classes, task.pooling, task.dropout) == (3, "mean", 0.0)
    # `dropout` is the classifier's; the backbone's is in the settings
    assert task.backbone.dropout == 0.1
    tokens = ["今天", "很", "好"] if word_level else list("今天很好")
    wanted = [task.preprocessor.tokenizer.token_to_id(t) for t in ["[CLS]", *tokens, "[SEP]"]]
    assert np.array(task.preprocessor(["今天很好"])["token_ids"])[0].tolist() == wanted
    assert task.predict(["今天天气很好", "不好"], verbose=0).shape == (2, 3)


def test_word_level_can_be_given(rng, tmp_path):
    folder = make_folder(tmp_path / "roformer", rng, WORDS)
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(folder, word_level=False)
    assert not tokenizer.word_level and tokenizer.vocabulary_size() == 19
    preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor.from_preset(
        folder, word_level=False, sequence_length=8
    )
    assert not preprocessor.tokenizer.word_level and preprocessor.sequence_length == 8


def test_a_given_backbone_is_used(folder):
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder, load_weights=False)
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, backbone=backbone, preprocessor=None)
    assert model.backbone is backbone
    assert np.abs(numpy(backbone.token_embedding.embeddings)).max() > 0.5  # its weights were loaded


def test_kept_tokens_cut_the_vocabulary_too(rng, tmp_path, dictionary):
    folder = make_folder(tmp_path / "roformer", rng)
    keep = [0, 1, 2, 3, 4, 7, 5]
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, keep_tokens=keep)
    assert model.preprocessor.tokenizer.get_vocabulary() == [*SPECIAL, "很", "天"]
    assert model.backbone.vocabulary_size == 7
    with pytest.raises(ValueError, match="`compound_tokens` adds tokens .* pass `vocabulary="):
        roformer_tf.RoFormerMaskedLM.from_preset(folder, compound_tokens=[[5, 6]])
    model = roformer_tf.RoFormerMaskedLM.from_preset(
        folder,
        compound_tokens=[[5, 6]],
        vocabulary=[*SPECIAL, *CHARACTERS, "天气"],
        dictionary=dictionary,
    )
    assert model.preprocessor.tokenizer.word_level
    with pytest.raises(
        ValueError, match=r"`keep_tokens` must hold ids of the vocabulary, .* Received: \[99\]"
    ):
        roformer_tf.RoFormerMaskedLM.from_preset(folder, keep_tokens=[0, 1, 2, 3, 4, 99])


def test_a_task_saves_its_vocabulary(rng, tmp_path, dictionary):
    folder = make_folder(tmp_path / "roformer", rng, WORDS)
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, dictionary=dictionary)
    with pytest.warns(UserWarning, match="no place for dictionary=.* the same arguments"):
        saved = save_checkpoint(model, tmp_path / "saved")
    assert (saved / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    again = roformer_tf.RoFormerMaskedLM.from_preset(str(saved))
    assert again.preprocessor.tokenizer.word_level
    assert json.loads((saved / "bert_config.json").read_text())["vocab_size"] == 19


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("vocab.txt", None, "vocab.txt is missing.* pass `preprocessor=None`"),
        ("vocab.txt", "\n".join(SPECIAL + CHARACTERS + ["新"]), "has 17 tokens, more than the 16"),
        ("vocab.txt", "\n".join(SPECIAL + CHARACTERS[:-1]), "has 15 tokens, fewer than the 16"),
        ("vocab.txt", "天\n气".encode("gb18030"), "must be UTF-8"),
        ("bert_config.json", '"vocab_size": 15', "`vocab_size` is 15, the weights have 16"),
        ("bert_config.json", None, "bert_config.json is missing"),
        ("bert_model.ckpt.index", None, "index of the checkpoint is missing"),
    ],
)
def test_damaged_files_are_named(rng, tmp_path, file, content, message):
    file = make_folder(tmp_path / "roformer", rng) / file
    options = {} if file.name == "vocab.txt" else {"preprocessor": None}
    if content is None:
        file.unlink()
    elif file.name == "bert_config.json":
        file.write_text(file.read_text().replace('"vocab_size": 16', content))
    else:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        roformer_tf.RoFormerMaskedLM.from_preset(file.parent, **options)
    if file.name == "vocab.txt":  # the model alone needs no vocabulary
        assert roformer_tf.RoFormerMaskedLM.from_preset(file.parent, preprocessor=None)


def test_unknown_arguments_raise(folder):
    with pytest.raises((TypeError, ValueError), match="no_such_argument"):
        roformer_tf.RoFormerBackbone.from_preset(folder, no_such_argument=1)
    with pytest.raises((TypeError, ValueError), match="no_such_argument"):
        roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None, no_such_argument=1)
