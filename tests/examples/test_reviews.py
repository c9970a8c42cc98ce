import importlib
from collections import Counter


def test_the_split_is_fixed_and_nothing_is_in_two_parts():
    splits = importlib.import_module("reviews").load_reviews()
    # counted once; with other numbers the accuracies in the documents would be of other texts
    assert {part: len(texts) for part, (texts, _) in splits.items()} == {
        "train": 13838,
        "validation": 1700,
        "test": 1783,
    }
    counts = Counter(text for texts, _ in splits.values() for text in texts)
    assert max(counts.values()) == 1
    for texts, labels in splits.values():
        assert len(texts) == len(labels)
        assert 0.4 < sum(labels) / len(labels) < 0.6


def test_labels_are_those_of_the_files():
    splits = importlib.import_module("reviews").load_reviews()
    label_of = {
        text: label for texts, labels in splits.values() for text, label in zip(texts, labels)
    }
    assert label_of["很后悔,不怎么样的一本书,千万别买"] == 0
    assert (
        label_of[
            "本人是一名大一学生，大一的生活一直处于浑浑噩噩的状态，直到我看到了这本书。它对于我的意义远远大于一本书。《杜拉拉升职记》让我开始重新审视自己的生活，开始规划自己的未来，在今后，我希望我能向拉拉一样所向无敌。人际关系的交际技巧，与上司下属的巧妙沟通，善于利用学习机会，每一次的金玉良言，我想说，杜拉拉不仅仅给在职的白领以启迪，她势必将改变我的生活。真的谢谢作者。"
        ]
        == 1
    )  # noqa: E501
