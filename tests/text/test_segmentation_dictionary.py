"""Compares the dictionary with jieba's."""

import gzip
import json
import lzma
from types import MappingProxyType

import jieba
import numpy as np
import pytest

from roformer_tf.text import RoFormerTokenizer, SegmentationDictionary
from roformer_tf.text.segmentation_dictionary import dictionary_digest
from tests.text.conftest import EDITS, SPECIAL


@pytest.fixture
def theirs():
    """A separate `jieba.Tokenizer`, not the module's."""
    tokenizer = jieba.Tokenizer()
    with open(jieba.__file__.replace("__init__.py", "dict.txt"), "rb") as file:
        tokenizer.FREQ, tokenizer.total = jieba.Tokenizer.gen_pfdict(file)
    tokenizer.initialized = True
    return tokenizer


def test_edits_are_those_of_jieba(theirs):
    ours = SegmentationDictionary()
    for method, *arguments in EDITS:
        # same return value, same dictionary afterwards
        assert getattr(ours, method)(*arguments) == getattr(theirs, method)(*arguments)
    ours.suggest_freq(("中", "将"), tune=True)
    theirs.suggest_freq(("中", "将"), tune=True)
    assert ours.frequencies == theirs.FREQ
    assert ours.total == theirs.total
    text = "「台中」正确应该不会被切开，今天北京大学生在追一科技如果放到post中将出错。"
    assert ours.cut(text) == theirs.lcut(text, HMM=False)
    assert SegmentationDictionary().cut("今天") == ["今天"]  # a new one is not affected


def test_user_words_are_added_in_order(theirs):
    theirs.add_word("追一科技")
    theirs.add_word("科技公司", 9)
    theirs.del_word("公司")
    ours = SegmentationDictionary(user_words={"追一科技": None, "科技公司": 9, "公司": 0})
    assert (ours.frequencies, ours.total) == (theirs.FREQ, theirs.total)


def test_frequencies_of_numpy_in_another_mapping(dictionary):
    vocabulary = [*SPECIAL, "追一", "科技", "追一科技"]
    words = MappingProxyType({"追一科技": np.int64(500)})  # a pandas Series is like it
    tokenizer = RoFormerTokenizer(vocabulary, dictionary=dictionary, user_words=words)
    assert tokenizer(["追一科技"]) == [[7]]
    assert json.dumps(tokenizer.get_config()["user_words"]) == json.dumps({"追一科技": 500})


def test_compressed_dictionary(dictionary, tmp_path):
    path = tmp_path / "dict.txt.gz"
    path.write_bytes(gzip.compress(dictionary.read_bytes()))
    plain, compressed = SegmentationDictionary(dictionary), SegmentationDictionary(path)
    assert compressed.frequencies == plain.frequencies
    assert dictionary_digest(path) == dictionary_digest(dictionary)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".gz", lambda text: text),
        (".gz", lambda text: gzip.compress(text)[:-12]),
        (".gz", lambda text: gzip.compress(text)[:-8] + bytes(8)),
        (".gz", lambda text: gzip.compress(text)[:10] + b"\xff" * 40),
        (".xz", lambda text: text),
        (".xz", lambda text: lzma.compress(text)[:-12]),
    ],
)
def test_damaged_compressed_dictionary(suffix, damage, dictionary, tmp_path):
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(damage(dictionary.read_bytes()))
    for read in (SegmentationDictionary, dictionary_digest):
        with pytest.raises(ValueError, match=rf"complete file.*damaged\{suffix}.*Compress"):
            read(path)


def test_jieba_s_own_dictionary_stays_unchanged():
    before = set(jieba.finalseg.Force_Split_Words)
    SegmentationDictionary(user_words={"追一科技": 10**6, "明天": 0})
    assert "追一科技" not in jieba.dt.FREQ
    assert jieba.finalseg.Force_Split_Words == before


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, "There is no dictionary file"),
        (b"", ValueError, "has no words"),
        ("追一\n".encode(), ValueError, "at Line 1"),
        ("追 1\n追一 many\n".encode(), ValueError, "at Line 2"),
        ("科技 7".encode("gbk"), ValueError, "at Line 1"),
    ],
)
def test_broken_dictionaries(content, error, message, tmp_path):
    path = tmp_path / "dict.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        RoFormerTokenizer([*SPECIAL, "追"], dictionary=path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("追一", "did you mean"),
        ([""], "non-empty"),
        ([7], "must be a non-empty string"),
        ({"追": -1}, "0 .delete"),
    ],
)
def test_broken_user_words(words, message, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("追 1\n", "utf-8")
    with pytest.raises(ValueError, match=message):
        RoFormerTokenizer([*SPECIAL, "追"], dictionary=path, user_words=words)
