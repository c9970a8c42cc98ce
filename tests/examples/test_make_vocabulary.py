import importlib


def test_characters_first_then_the_most_frequent_words():
    make_vocabulary = importlib.import_module("make_vocabulary").make_vocabulary
    texts = ["今天天气很好，今天很高兴", "天气不好", "今天天气"] * 2
    vocabulary = make_vocabulary(texts, size=200, min_count=4)
    assert vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(vocabulary) == len(set(vocabulary))
    assert "##a" in vocabulary and "a" in vocabulary and "A" not in vocabulary
    # characters that occur four times, the most frequent first; then jieba's words, equally frequent ones by code point
    assert vocabulary[vocabulary.index("##z") + 1 :] == [
        *("天", "今", "气", "好", "很"),
        *("今天天气", "不好", "今天", "天气", "高兴", "，"),
    ]
    assert make_vocabulary(texts, size=112, min_count=4) == vocabulary[:112]
