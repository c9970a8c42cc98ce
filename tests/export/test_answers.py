"""Entities, answers and choices: the SavedModel in a bare process against the Keras model."""

import numpy as np
import pytest

import roformer_tf
from roformer_tf.__main__ import main
from roformer_tf.export import export_onnx, export_saved_model
from tests.export.conftest import encoded
from tests.export.server import BLOCKED
from tests.models.answering import HARD, random_text
from tests.models.test_multiple_choice import chooser, questions
from tests.models.test_question_answering import reader
from tests.models.test_token_classifier import tagger


@pytest.mark.slow
@pytest.mark.parametrize("head", ["efficient_global_pointer", "crf", "softmax"])
def test_entities(ask, rng, tmp_path, head, capsys):
    """`export` of a saved token classifier knows its task."""
    task = tagger(head, sequence_length=40)
    texts = [*HARD, *(random_text(rng, int(n)) for n in rng.integers(1, 120, 8))]
    task.save_to_preset(tmp_path / "preset")
    folder = tmp_path / "served"
    assert main(["export", str(tmp_path / "preset"), str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "RoFormerTokenClassifier in" in printed and "texts: string" in printed
    answer = ask(folder, texts=encoded(texts))
    expected = task.predict(texts, verbose=0)
    assert any(expected)
    for i, row in enumerate(expected):
        found = [(int(s), int(e), x.decode()) for s, e, x in zip(
            answer["start"][i], answer["end"][i], answer["label"][i], strict=True
        ) if s >= 0]  # fmt: skip
        assert found == [entity[:3] for entity in row]
        np.testing.assert_allclose(
            answer["score"][i][: len(row)], [entity[3] for entity in row], atol=1e-5
        )
    assert ask(folder, texts=[])["start"].shape == (0, 0)
    assert not {name.split(".")[0] for name in ask.modules()} & set(BLOCKED)
    with pytest.raises(ValueError, match="Use `export_saved_model`"):
        export_onnx(task, tmp_path / "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["joint", "separate"])
def test_reading(ask, rng, tmp_path, head):
    task = reader(head, sequence_length=40)
    contexts = [random_text(rng, int(n)) for n in rng.integers(1, 120, 8)]
    questions = [random_text(rng, int(n)) for n in rng.integers(1, 30, 8)]
    folder = export_saved_model(task, tmp_path / "served", top_k=3)
    answer = ask(folder, question=encoded(questions), context=encoded(contexts))
    x = {"question": questions, "context": contexts}
    every_span = task.predict(x, n_best=20_000, no_answer=True, verbose=0)
    for i, spans in enumerate(every_span):
        best = [span[:3] for span in spans if span[2]][:3]
        columns = (answer[name][i] for name in ("start", "end", "text", "score"))
        found = [
            (int(s), int(e), t.decode()) for s, e, t, p in zip(*columns, strict=True) if p >= 0
        ]
        assert found == best
        assert all(context == contexts[i][start:end] for start, end, context in found)
    assert ((answer["no_answer"] > 0) & (answer["no_answer"] <= 1)).all()  # 1 is a rounded one
    none = [score for row in every_span for _, _, text, score in row if not text]
    np.testing.assert_allclose(answer["no_answer"], none, rtol=1e-5)
    assert ask(folder, question=[], context=[])["text"].shape == (0, 3)
    with pytest.raises(RuntimeError, match="must have the same number of texts"):
        ask(folder, question=encoded(questions[:2]), context=encoded(contexts[:1]))


@pytest.mark.slow
def test_choices(ask, rng, tmp_path):
    task = chooser()
    folder = export_saved_model(task, tmp_path / "served")
    x = questions(rng, 5, least=4, most=4)
    x["choices"][1] = x["choices"][1][:2]
    rows = [encoded(row) + [b""] * (4 - len(row)) for row in x["choices"]]
    texts = {name: encoded(x[name]) for name in ("context", "question")}
    without = {name: column for name, column in x.items() if name != "context"}
    gaps = {"left": x["context"], "right": x["question"], "choices": x["choices"]}
    for signature, given, data in (
        ("serving_default", texts, x),
        ("questions", {"question": texts["question"]}, without),
        ("gaps", {"left": texts["context"], "right": texts["question"]}, gaps),
    ):
        answer = ask(folder, signature, choices=rows, **given)
        for i, row in enumerate(task.predict(data, verbose=0)):
            count = len(row)
            assert answer["index"][i][:count].tolist() == [index for index, *_ in row]
            assert [c.decode() for c in answer["choice"][i][:count]] == [c for _, c, _ in row]
            np.testing.assert_allclose(
                answer["probability"][i][:count], [p for *_, p in row], atol=1e-5
            )
        none = {name: [] for name in given}
        empty = ask(folder, signature, choices=np.empty((0, 4), "S"), **none)
        assert empty["index"].shape == (0, 4)
        with pytest.raises(RuntimeError, match="must have the same number of texts"):
            ask(folder, signature, choices=rows[:1], **given)


def test_labels_are_the_models_own(tmp_path):
    with pytest.raises(ValueError, match="has its own"):
        export_saved_model(tagger(), tmp_path / "served", labels=["a", "b", "c"])
    with pytest.raises(ValueError, match="`top_k` must be"):
        export_saved_model(reader(), tmp_path / "served", top_k=0)
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor
    with pytest.raises(ValueError, match="needs a RoFormerTokenClassifierPreprocessor"):
        task = tagger()
        export_saved_model(
            task, tmp_path / "s", preprocessor=preprocessor(task.preprocessor.tokenizer)
        )
