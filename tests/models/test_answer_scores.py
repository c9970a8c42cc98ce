"""Scores of answers, the callback that computes them, and classes without training."""

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.models import (
    AnswerMetrics,
    choice_accuracy,
    cloze_examples,
    entity_f1,
    fill_mask,
    reading_scores,
    zero_shot,
)
from tests.models.answering import VOCABULARY, backbone, random_text
from tests.models.builders import randomized
from tests.models.test_token_classifier import sentences, tagger


def test_entity_f1():
    wanted = [[(0, 2, "A"), (0, 2, "B"), (3, 5, "A")], [], [(1, 2, "A")]]
    found = [[(0, 2, "A", 0.7), (3, 6, "A", 0.9)], [(0, 1, "B", 0.5)], [(1, 2, "A", 0.6)]]
    scores = entity_f1(wanted, found)
    assert scores == {"precision": 2 / 4, "recall": 2 / 4, "f1": 0.5}
    assert entity_f1([[]], [[]])["f1"] == 0.0
    with pytest.raises(ValueError):
        entity_f1([[]], [])


@pytest.mark.parametrize(
    ("references", "answer", "match", "f1"),
    [
        # values of cmrc2018_evaluate.py
        (["1998年"], "1998年。", 1, 1.0),
        (["北京市", "北京"], "北京", 1, 1.0),
        (["40km"], "4", 0, 0.0),
        (["格利泽581"], "格利泽581b是一颗围绕", 0, 6 / 13),
        (["Henry A. Walsh"], "y A. Walsh", 0, 2 / 3),
        (["46,600m²"], "，总面积46,600m", 0, 0.0),
        (["28至32℃（82至90°F）", "平均气温28至32℃（82至90°F）。"], "（82至90°F）", 0, 0.5),
        (["天地"], "", 0, 0.0),
        # NLTK's opening and closing quotes differ, and it splits off the ends of words
        (['"alexandra"'], 'alexandra"', 0, 4 / 5),
        (['"alexandra"'], '"alexandra', 0, 4 / 5),
        (['a "house" b'], '"', 0, 1 / 3),
        (["Ada's notes"], "Ada", 0, 1 / 2),
        (["don't know"], "do", 0, 1 / 2),
        (["’it’s"], "'it", 0, 0.0),
        ([""], "", 1, 0.0),
    ],
)
def test_reading_scores(references, answer, match, f1):
    scores = reading_scores([references], [[(0, 1, answer, 0.5)] if answer else []])
    assert scores["exact_match"] == match
    assert abs(scores["f1"] - f1) < 1e-9


def test_choice_accuracy():
    answers = [[(1, "b", 0.6), (0, "a", 0.4)]] * 3
    assert choice_accuracy([1, 0, 1], answers) == {"accuracy": 2 / 3}


@pytest.mark.slow
def test_best_weights_are_kept(rng):
    """The model ends with the weights of its best epoch, also if later ones are worse."""
    task = tagger()
    task.compile(keras.optimizers.SGD(0.0))
    texts, entities = sentences(rng, 2)
    values = [float("nan"), 0.7, 0.7, 0.2]
    scores = iter(values)

    def score(y, answers):
        assert y is entities and len(answers) == 2
        return {"other": 1.0, "f1": next(scores)}

    class Mark(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            task.pointer.dense.bias.assign(0 * task.pointer.dense.bias + float(epoch))

    metrics = AnswerMetrics(texts, entities, score, batch_size=1)
    history = task.fit(texts, entities, epochs=4, callbacks=[Mark(), metrics], verbose=0)
    np.testing.assert_array_equal(history.history["val_f1"], values)
    assert metrics.best == 0.7 and metrics.best_epoch == 1
    assert np.all(task.pointer.dense.bias.numpy() == 1)
    wrong = AnswerMetrics(texts, entities, lambda y, a: {"f1": 0.0}, monitor="val_em")
    with pytest.raises(ValueError, match=r"`monitor` must be one of \['f1'\]"):
        task.fit(texts, entities, callbacks=[wrong], verbose=0)


def test_answers_of_a_generator_are_refused():
    with pytest.raises(ValueError, match="`x` is read after every epoch.* Received: x=<generator"):
        AnswerMetrics((text for text in ["天气"]), [[]], choice_accuracy)


def masked_lm(num_layers=1, **options):
    words = roformer_tf.RoFormerTokenizer(VOCABULARY, word_level=False, **options)
    preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(words, sequence_length=32)
    return randomized(roformer_tf.RoFormerMaskedLM(backbone(num_layers=num_layers), preprocessor))


@pytest.mark.eager
def test_zero_shot_is_the_models_distribution(rng):
    """Words of one and two tokens, long texts: as a softmax over the masks written out."""
    task = masked_lm()
    texts = [random_text(rng, int(n)) for n in (3, 12, 60)]
    words = {"a": "天", "b": "玄黄", "c": "宇"}
    answers = zero_shot(task, texts, "{text}在{mask}。", words, batch_size=2)
    ids = task.preprocessor.tokenizer
    for text, answer in zip(texts, answers, strict=True):
        scores = {}
        for label, word in words.items():
            count = len(word)
            tokens = np.asarray(ids(text))[: 32 - 2 - count - 2].tolist()
            row = [2, *tokens, *ids("在"), *[4] * count, *ids("。"), 3]
            positions = [len(row) - 2 - count + i for i in range(count)]
            logits = np.asarray(task({"token_ids": np.array([row])}), "float64")[0, positions]
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            scores[label] = np.mean([logs[i, token] for i, token in enumerate(ids(word))])
        total = sum(np.exp(score) for score in scores.values())
        assert [label for label, _ in answer] == sorted(scores, key=scores.get, reverse=True)
        for label, share in answer:
            np.testing.assert_allclose(share, np.exp(scores[label]) / total, rtol=1e-4)
    alone = zero_shot(task, texts[0], "{text}在{mask}。", words)
    assert [label for label, _ in alone] == [label for label, _ in answers[0]]


@pytest.mark.eager
def test_the_padding_of_a_tokenizer_is_not_counted(monkeypatch):
    task = masked_lm(sequence_length=8)
    monkeypatch.setattr(task.preprocessor, "as_graph", lambda name, pack, texts: pack(texts))
    x, y, _ = cloze_examples(task, ["天" * 60], ["a"], "{text}在{mask}。", {"a": "玄黄"})
    ids = {token: i for i, token in enumerate(task.preprocessor.tokenizer.get_vocabulary())}
    assert y.tolist() == [[ids["玄"], ids["黄"]]]
    assert x["token_ids"].tolist() == [[2, *[ids["天"]] * 26, ids["在"], 4, 4, ids["。"], 3]]


@pytest.mark.slow
def test_few_shots_learn(rng):
    task = masked_lm(num_layers=2)
    task.compile(keras.optimizers.Adam(0.01))
    words = {"wet": "雨雪", "dry": "晴"}
    texts = [random_text(rng, 5) + ("北" if i % 2 else "京") for i in range(16)]
    labels = ["wet" if i % 2 else "dry" for i in range(16)]
    examples = cloze_examples(task, texts, labels, "{text}{mask}。", words)
    for _ in range(80):  # 40 are enough for the slowest of 36 seeds
        task.train_on_batch(*examples)
    answers = zero_shot(task, texts, "{text}{mask}。", words)
    assert [answer[0][0] for answer in answers] == labels
    task.fit(*examples, verbose=0)


@pytest.mark.eager
def test_wrong_patterns_are_named():
    task = masked_lm()
    for pattern, words, message in (
        ("{text}", {"a": "天"}, "'{text}' and '{mask}' once each"),
        ("{text}{mask}", {}, "dictionary from labels to words"),
        ("{text}{mask}", {"a": " "}, "must have tokens. Received: ' ' for 'a'"),
        ("天" * 40 + "{text}{mask}", {"a": "天"}, "leaves no room"),
    ):
        with pytest.raises(ValueError, match=message):
            zero_shot(task, ["地"], pattern, words)
    for nothing in ([], np.array([], object), ()):
        with pytest.raises(ValueError, match="The dataset is empty"):
            zero_shot(task, nothing, "{text}{mask}", {"a": "天"})
        with pytest.raises(ValueError, match="The dataset is empty"):
            fill_mask(task, nothing)
    with pytest.raises(ValueError, match=r"mask of its own.*Received: '\[MASK\]地'"):
        cloze_examples(task, ["[MASK]地"], ["a"], "{text}{mask}", {"a": "天"})
    with pytest.raises(ValueError, match="Labels must be among"):
        cloze_examples(task, ["地"], ["b"], "{text}{mask}", {"a": "天"})
    with pytest.raises(ValueError, match="Expected a RoFormerMaskedLM"):
        zero_shot(tagger(), ["地"], "{text}{mask}", {"a": "天"})
