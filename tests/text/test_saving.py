"""The tokenizer's configuration, assets, presets and cache."""

import json
import os

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.text import RoFormerTokenizer
from tests.models.builders import backbone, saved_and_loaded
from tests.text.conftest import SPECIAL, VOCABULARY


def test_config_and_assets(dictionary, tmp_path):
    texts = ["追一科技的RoFormer", "追一科"]
    tokenizer = RoFormerTokenizer(
        VOCABULARY, dictionary=dictionary, user_words={"一科": 500}, word_maxlen=9, lowercase=False
    )
    config = json.loads(json.dumps(keras.layers.serialize(tokenizer)))
    again = keras.layers.deserialize(config)
    assert again.get_config() == tokenizer.get_config()
    tokenizer.save_assets(tmp_path)
    assert sorted(tokenizer.file_assets) == sorted(set(os.listdir(tmp_path)) - {"dict.txt"})
    dictionary.unlink()  # its words are in the tables
    again.load_assets(tmp_path)
    assert again(texts) == tokenizer(texts)
    assert again.special_token_ids == tokenizer.special_token_ids
    # another vocabulary, the same dictionary
    again.set_vocabulary([*SPECIAL, "一科", "的"])
    assert again(["的一科"]) == [[6, 5]]
    # tables of another vocabulary are rejected
    (tmp_path / "vocabulary.txt").write_text("\n".join([*SPECIAL, "一科"]), "utf-8")
    with pytest.raises(ValueError, match="another vocabulary or configuration .vocabulary_digest"):
        again.load_assets(tmp_path)
    with pytest.raises(ValueError, match="word_level, lowercase, word_maxlen"):
        RoFormerTokenizer(word_level=False).load_assets(tmp_path)
    # so is a damaged file
    (tmp_path / "tokenizer_tables.npz").write_bytes(b"PK\3\4 no")
    with pytest.raises(ValueError, match="damaged"):
        again.load_assets(tmp_path)
    # missing tables are rebuilt
    (tmp_path / "tokenizer_tables.npz").unlink()
    characters = RoFormerTokenizer(word_level=False)
    characters.load_assets(tmp_path)
    assert characters(["追"]) == [[1]]


def test_a_configuration_must_not_contain_a_path(tokenizer):
    config = {**tokenizer.get_config(), "vocabulary": "/etc/passwd"}
    with pytest.raises(ValueError, match="must not contain a path"):
        RoFormerTokenizer.from_config(config)


def test_a_failed_save_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    tokenizer.save_assets(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in tokenizer.file_assets}

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        tokenizer.save_assets(tmp_path)
    after = {
        name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name in before
    }
    assert after == before
    assert not [name for name in os.listdir(tmp_path) if name not in (*before, "dict.txt")]


def test_in_a_keras_file(tokenizer, tmp_path):
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer, sequence_length=8)
    encoder = backbone(num_layers=1, vocabulary_size=len(VOCABULARY))
    model = roformer_tf.RoFormerTextClassifier(encoder, num_classes=2, preprocessor=preprocessor)
    again = saved_and_loaded(model, tmp_path)
    texts = ["追一科技的RoFormer", ""]
    assert again.preprocessor.tokenizer(texts) == tokenizer(texts)


def test_preset_assets(tokenizer, tmp_path):
    tokenizer.save_to_preset(str(tmp_path))
    config = json.loads((tmp_path / "tokenizer.json").read_text())
    again = keras.layers.deserialize(config)
    again.load_preset_assets(str(tmp_path))
    assert again(["追一科技"]) == tokenizer(["追一科技"])


def test_preprocessors_without_a_model(tmp_path):
    tokenizer = RoFormerTokenizer(VOCABULARY, word_level=False, lowercase=False)
    roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer, sequence_length=9).save_to_preset(tmp_path)
    for cls, length in (("MaskedLM", 9), ("CausalLM", 512)):
        again = getattr(roformer_tf, f"RoFormer{cls}Preprocessor").from_preset(tmp_path)
        assert again.sequence_length == length
        assert again.tokenizer.get_config()["lowercase"] is False
    assert RoFormerTokenizer.from_preset(tmp_path)(["RoFormer"]) == tokenizer(["RoFormer"])
    with pytest.raises(ValueError, match="Use `RoFormerTokenizer.from_preset`"):
        roformer_tf.RoFormerSeq2SeqLMPreprocessor.from_preset(tmp_path)
    with pytest.raises(FileNotFoundError, match="config.json is missing"):
        roformer_tf.RoFormerMaskedLM.from_preset(tmp_path)


@keras.saving.register_keras_serializable(package="tests.text")
class RoFormerNames(RoFormerTokenizer):
    """A tokenizer of a user's own, with a name like ours."""


def test_the_preset_of_a_subclass(tmp_path):
    tokenizer = RoFormerNames(VOCABULARY, word_level=False)
    tokenizer.save_to_preset(tmp_path)
    again = RoFormerNames.from_preset(tmp_path)
    assert type(again) is RoFormerNames and again.get_vocabulary() == tokenizer.get_vocabulary()
    with pytest.raises(ValueError, match="RoFormerTokenizer cannot.*`RoFormerNames.from_preset`"):
        RoFormerTokenizer.from_preset(tmp_path)


def test_the_folder_of_an_original_checkpoint(dictionary, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), "utf-8")
    words = RoFormerTokenizer.from_preset(str(tmp_path), dictionary=dictionary)
    assert words.word_level
    assert words(["追一"]) == [[13]]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *"追一", "##追"]), "utf-8")
    characters = RoFormerTokenizer.from_preset(str(tmp_path))
    assert not characters.word_level
    assert characters(["追一"]) == [[5, 6]]


def test_the_tokenizer_of_transformers_5(tmp_path):
    """It writes no `vocab.txt`."""
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "<s>", "[SEP]", *"追一"])}
    added = [{"content": "<s>", "id": 2, "special": True}, {"content": "追一", "id": 6}]
    model = {"type": "WordPiece", "vocab": dict(reversed(vocabulary.items()))}
    content = {"model": model, "added_tokens": added, "normalizer": {"lowercase": False}}
    file, options = tmp_path / "tokenizer.json", {"mask_token": None}
    file.write_text(json.dumps(content), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "<s>"}')
    tokenizer = RoFormerTokenizer.from_preset(tmp_path, **options)
    assert tokenizer.get_vocabulary() == [*vocabulary, "追一"]
    # an added word does not make it a vocabulary of words
    assert not tokenizer.word_level and not tokenizer.lowercase
    assert tokenizer.added_tokens == ["追一"]
    assert tokenizer.encode(["追一追<s>"])[0] == [[2, 6, 4, 1, 1, 1, 3]]

    for changes, message in (
        ({"model": {"type": "BPE"}}, "type WordPiece with the prefix ##.* type='BPE'"),
        (
            {"added_tokens": [{"content": "x", "id": 9}]},
            "without a gap.* 7 tokens with ids .* to 9",
        ),
        ({"added_tokens": [3]}, "tokenizer.json is damaged"),
    ):
        file.write_text(json.dumps({**content, **changes}), "utf-8")
        with pytest.raises(ValueError, match=message):
            RoFormerTokenizer.from_preset(tmp_path, **options)


def test_tables_are_kept_on_disk(tmp_path, monkeypatch, dictionary):
    monkeypatch.setattr("roformer_tf.text.tokenizer_tables.SMALL", 0)
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    expected = RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"])
    (file,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as patch:  # nothing is built the second time
        patch.setattr("roformer_tf.text.tokenizer_tables.build_tables", None)
        assert RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"]) == expected
    # a damaged file is replaced
    size = file.stat().st_size
    file.write_bytes(b"damaged")
    assert RoFormerTokenizer(VOCABULARY, dictionary=dictionary)(["追一科"]) == expected
    assert file.stat().st_size == size
    # whatever changes the result changes the name; only the newest files are kept
    for change in (
        {"user_words": ["一科"]},
        {"user_words": ["追一"]},
        {"lowercase": False},
        {"word_maxlen": 5},
        {"vocabulary": [*VOCABULARY, "x"]},
        {"unk_token": "[MASK]"},
    ):
        before = set((tmp_path / "cache").iterdir())
        RoFormerTokenizer(**{"vocabulary": VOCABULARY, "dictionary": dictionary, **change})
        assert len(set((tmp_path / "cache").iterdir()) - before) == 1, change
    for i in range(3):
        dictionary.write_text(f"追一 {i + 1}\n", "utf-8")
        RoFormerTokenizer(VOCABULARY, dictionary=dictionary)
    assert len(list((tmp_path / "cache").iterdir())) == 8
    # a folder that cannot be written to, and no folder
    (tmp_path / "file").write_text("")
    for no_folder in (tmp_path / "file" / "below", ""):
        monkeypatch.setenv("ROFORMER_TF_CACHE", str(no_folder))
        RoFormerTokenizer(VOCABULARY, dictionary=dictionary)
