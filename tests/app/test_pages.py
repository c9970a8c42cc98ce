"""What the pages of the app show, without Gradio: the same answers as the tasks themselves."""

import types
from unittest import mock

import keras_hub
import numpy as np
import pytest

import roformer_tf
from roformer_tf.app import (
    answers,
    choices,
    classify,
    entities,
    fill_mask,
    generate,
    paraphrases,
    similarity,
    translate,
)
from roformer_tf.app.app import PAGES, launch, pages_of
from roformer_tf.app.parts import example_texts
from tests.models import builders

WORDS = [*"张三李四在上海天津我们去了的很好不吃喝", "##a", "a"]
TOKENIZER = roformer_tf.RoFormerTokenizer([*builders.SPECIAL, *WORDS], word_level=False)


def make(name, kind="v1", **options):
    cls = getattr(roformer_tf, name)
    backbone = builders.backbone(kind, num_layers=1, vocabulary_size=TOKENIZER.vocabulary_size())
    return cls(backbone, preprocessor=cls.preprocessor_cls(TOKENIZER), **options)


def test_masks_are_filled_as_fill_mask_does():
    from roformer_tf.models import fill_mask as oracle

    task = make("RoFormerMaskedLM")
    text = "[MASK]在上海[MASK][MASK]的"
    pieces, masks = fill_mask.fill(task, text, top_k=3)
    assert list(masks.values()) == oracle(task, text, top_k=3)
    assert list(masks) == ["mask 1", "mask 2", "mask 3"]
    best = [tokens[0][0].removeprefix("##") for tokens in masks.values()]
    assert "".join(piece for piece, _ in pieces) == f"{best[0]}在上海{best[1]}{best[2]}的"
    assert [name for _, name in pieces if name] == list(masks)


def test_a_text_without_mask_is_refused():
    with pytest.raises(ValueError, match=r"at least one \[MASK\].*Received: '在上海'"):
        fill_mask.fill(make("RoFormerMaskedLM"), "在上海")


def test_classes_and_scores():
    task = make("RoFormerTextClassifier", labels=["bad", "good"])
    assert classify.classify(task, "很好") == task.classify("很好")
    assert classify.classify(task, "很好", "不好") == task.classify(("很好", "不好"))
    with pytest.raises(ValueError, match="Type a text first"):
        classify.classify(task, "  ")
    regression = make("RoFormerTextClassifier", num_classes=1)
    ((name, score),) = classify.classify(regression, "很好")
    assert name == "score" and score == regression.predict(["很好"], verbose=0)[0, 0]


def test_entities_are_those_of_predict():
    task = make("RoFormerTokenClassifier", labels=["PER", "LOC"])
    text = "张三在上海李四在天津"
    found = entities.find(task, text)
    assert found == sorted(task.predict([text], verbose=0)[0]) and found
    kept = entities.surest(found)
    assert all(first[1] <= second[0] for first, second in zip(kept, kept[1:]))
    for entity in set(found) - set(kept):  # covered by one that is surer
        assert any(e[0] < entity[1] and entity[0] < e[1] and e[3] >= entity[3] for e in kept)


@pytest.mark.slow
def test_answers_and_choices_are_those_of_predict():
    reader = make("RoFormerQuestionAnswering")
    x = {"question": ["我们在上海"], "context": ["张三在上海李四在天津"]}
    assert (
        answers.read(reader, "我们在上海", "张三在上海李四在天津", n_best=2, no_answer=True)
        == reader.predict(x, verbose=0, n_best=2, no_answer=True)[0]
    )
    with pytest.raises(ValueError, match="Type a context first"):
        answers.read(reader, "我们在上海", "")
    chooser = make("RoFormerMultipleChoice")
    x = {"question": ["我们在"], "choices": [["上海", "天津"]], "context": ["张三在上海"]}
    shown = choices.choose(chooser, "我们在", "上海\n\n 天津", "张三在上海")
    assert shown == [answer[1:] for answer in chooser.predict(x, verbose=0)[0]]
    with pytest.raises(ValueError, match="at least 2 choices.*Received: 1 line"):
        choices.choose(chooser, "我们在", "上海")


def test_similarity_of_means():
    task = make("RoFormerMaskedLM")
    texts = ["我们去了上海", "我", "张三李四在天津"]

    def mean(text):  # alone, so without padding, in float64
        inputs = task.preprocessor.pack([text])
        vector = np.asarray(task.backbone(inputs), "float64")[0].mean(0)
        return vector / np.linalg.norm(vector)

    first, *others = map(mean, texts)
    shown = dict(similarity.compare(task, texts[0], "\n".join(texts[1:])))
    for text, vector in zip(texts[1:], others):
        np.testing.assert_allclose(shown[text], vector @ first, atol=1e-6)  # float32
    assert list(shown.values()) == sorted(shown.values(), reverse=True)


@pytest.mark.slow
def test_sim_compares_and_paraphrases():
    task = make("RoFormerSim", "sim")
    vectors = task.embed(["我们", "张三", "上海"])
    shown = dict(similarity.compare(task, "我们", "张三\n上海"))
    np.testing.assert_allclose([shown["张三"], shown["上海"]], vectors[1:] @ vectors[0], rtol=1e-6)
    found = paraphrases.paraphrase(task, "我们", n=6, k=3, top_p=0.9, temperature=0.8, seed=4)
    task.compile(sampler=keras_hub.samplers.TopPSampler(p=0.9, temperature=0.8, seed=4))
    assert found == task.similar("我们", n=6, k=3) and found
    task = generate.streaming(task)
    paraphrases.paraphrase(task, "我们", n=4, k=2, seed=1)
    graph = task.generate_function
    paraphrases.paraphrase(task, "张三", n=5, k=2, top_p=0.5, temperature=0.7, seed=2)
    assert task.generate_function is graph  # other settings need no other graph


def test_lines_are_translated(monkeypatch):
    monkeypatch.setattr(translate, "translate", lambda task, texts: [t.upper() for t in texts])
    assert translate.translate_lines(None, "a cat\n\na dog") == "A CAT\nA DOG"
    with pytest.raises(ValueError, match="at least 1 text"):
        translate.translate_lines(None, "\n")


def test_every_task_has_pages():
    names = {name for name in vars(roformer_tf.models) if name.startswith("RoFormer")}
    tasks = {n for n in names if not n.endswith(("Preprocessor", "Seq2SeqBackbone", "Tokenizer"))}
    assert {name for name, _ in PAGES} == tasks
    for page in {page for _, pages in PAGES for page in pages}:
        assert page.TITLE and callable(page.build)
    sim = make("RoFormerSim", "sim")
    assert pages_of(sim) == (similarity, paraphrases)
    with pytest.raises(ValueError, match="Received: list"):
        pages_of([])


def test_the_first_settings_are_in_their_range():
    task = make("RoFormerCausalLM", "gpt")
    task.preprocessor.sequence_length = 32
    gr = mock.MagicMock()
    generate.build(gr, task)
    ranges = [call.args for call in gr.Slider.call_args_list]
    assert ranges and all(least <= first <= most for least, most, first in ranges)


@pytest.mark.parametrize("error", [OSError("server_port"), OverflowError("0-65535")])
def test_a_port_that_cannot_be_used_is_named(error, monkeypatch):
    """Gradio's own errors, the one for a port that is taken, the other for one that is too large."""
    monkeypatch.setattr("roformer_tf.app.app.import_gradio", mock.MagicMock())
    app = mock.MagicMock(**{"launch.side_effect": error})
    with pytest.raises(OSError, match=r"127.0.0.1, port 70000. Pass another `port` \(--port\)"):
        launch(app, port=70000)


def test_examples_are_in_the_models_language():
    def task(words):
        tokenizer = types.SimpleNamespace(get_vocabulary=lambda: words)
        return types.SimpleNamespace(preprocessor=types.SimpleNamespace(tokenizer=tokenizer))

    assert example_texts(task(TOKENIZER.get_vocabulary()), ["中"], ["en"]) == ["中"]
    assert example_texts(task(["[UNK]", "the"]), ["中"], ["en"]) == ["en"]
