"""Word starts; `test_original.py` compares them with jieba and bert4keras' tokenizer."""

import pytest
import tensorflow as tf

from roformer_tf.text import RoFormerTokenizer


def test_words_that_are_not_in_the_vocabulary(tokenizer, by_character):
    # 追一 and 科技 are words in the dictionary; 二 is neither a word nor a token
    ids, begins = tokenizer.tokenize_with_word_starts(["追一科技的RoFormer二，。", ""])
    assert begins == [[True, True, True, True, False, True, True, True], []]
    assert ids == tokenizer(["追一科技的RoFormer二，。", ""])
    ids, begins = by_character.tokenize_with_word_starts("追一RoFormerxyz é ro")
    assert ids.shape == begins.shape
    assert begins.numpy().tolist() == [True, True, True, True, True]


def test_a_segmenter_gives_its_words_to_characters(tokenizer, by_character):
    text = "追一科技 的，追RoFormer一"
    ids, begins = by_character.tokenize_with_word_starts([text], tokenizer)
    assert ids == by_character([text])
    t, f = True, False
    assert begins == [[t, f, t, f, t, t, t, t, f, t]]
    # jieba treats each character of another script as a word, but the run stays one word
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "か", "##な", "天", "气"]
    characters = RoFormerTokenizer(vocabulary, word_level=False)
    assert characters.tokenize_with_word_starts(["かな天气"], tokenizer)[1] == [[t, f, t, t]]
    # dropped characters join their neighbours at character level, separate them at word level
    _, begins = by_character.tokenize_with_word_starts(
        ["追\u200b一\x07", "\u200b", "科\0技"], tokenizer
    )
    assert begins == [[t, t], [], [t, t]]
    with pytest.raises(ValueError, match="must be a word-level tokenizer"):
        tokenizer.tokenize_with_word_starts(["追"], tokenizer)
    with pytest.raises(ValueError, match="must be a word-level tokenizer"):
        by_character.tokenize_with_word_starts(["追"], by_character)


def test_in_tf_data_and_of_any_rank(tokenizer, by_character):
    texts = ["追一科技", "", "的", "科技追一"]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(3)
    for segmenter in (None, tokenizer):
        expected = by_character.tokenize_with_word_starts(texts, segmenter)
        rows = data.map(
            lambda x, s=segmenter: by_character.tokenize_with_word_starts(x, s)
        ).unbatch()
        assert [ids.numpy().tolist() for ids, _ in rows] == expected[0]
        assert [begins.numpy().tolist() for _, begins in rows] == expected[1]
        assert rows.element_spec[1].dtype == tf.bool
    ragged = tf.ragged.constant([["追一", "的科技"], [], ["的"]])
    ids, begins = by_character.tokenize_with_word_starts(ragged, tokenizer)
    assert ids == by_character(ragged)
    assert begins == [[[True, False], [True, True, False]], [], [[True]]]
    assert by_character.tokenize_with_word_starts([], tokenizer) == ([], [])
