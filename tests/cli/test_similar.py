"""`similar` and `embed` print what the model gives."""

import io

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from tests.cli.conftest import TEXTS, run
from tests.models import builders


@pytest.fixture(scope="module")
def sim():
    preprocessor = roformer_tf.RoFormerSimPreprocessor(builders.tokenizer())
    return roformer_tf.RoFormerSim(builders.backbone("sim", num_layers=1), preprocessor)


@pytest.fixture(scope="module")
def folders(sim, tmp_path_factory):
    top = tmp_path_factory.mktemp("models")
    save_checkpoint(sim, top / "original-sim")
    sim.save_to_preset(str(top / "preset"))
    return top


def test_embed(folders, sim, capsys, monkeypatch, printed_json):
    expected = sim.embed(TEXTS, normalize=False)
    assert run("embed", folders / "original-sim", *TEXTS, "--raw", "--json") == 0
    lines = printed_json()
    assert [line["text"] for line in lines] == TEXTS
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=1e-5)

    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([TEXTS[0], "", TEXTS[1], ""])))
    assert run("embed", folders / "preset") == 0
    printed = capsys.readouterr().out
    vectors = sim.embed(TEXTS)
    assert all(text in printed for text in TEXTS)
    assert printed.count(f"{vectors[0] @ vectors[1]:.3f}") == 2


@pytest.mark.slow
def test_embed_by_any_model(tmp_path, rng, capsys, printed_json, error_of):
    texts = builders.texts(rng, 3)
    masked_lm = builders.task("masked_lm", preprocessor={})
    masked_lm.save_to_preset(str(tmp_path / "task"))
    masked_lm.backbone.save_to_preset(str(tmp_path / "backbone"))
    masked_lm.preprocessor.tokenizer.save_to_preset(str(tmp_path / "backbone"))
    masked_lm.backbone.save_to_preset(str(tmp_path / "alone"))
    wanted = masked_lm.embed(texts, pooling="mean", normalize=False)
    for folder in ("task", "backbone"):
        assert run("embed", tmp_path / folder, *texts, "--pooling", "mean", "--raw", "--json") == 0
        found = [line["vector"] for line in printed_json()]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    assert run("embed", tmp_path / "task", *texts, "--pooling", "cls") == 0
    vectors = masked_lm.embed(texts, pooling="cls")
    assert f"{vectors[0] @ vectors[1]:.3f}" in capsys.readouterr().out
    assert "has no pooler" in error_of("embed", tmp_path / "task", *texts)
    assert "without a tokenizer" in error_of("embed", tmp_path / "alone", "天", "--pooling", "cls")


@pytest.mark.slow
def test_embed_by_a_classifier_of_pairs(sim, tmp_path, error_of, printed_json):
    preprocessor = roformer_tf.RoFormerSimClassifierPreprocessor(sim.preprocessor.tokenizer)
    classifier = roformer_tf.RoFormerSimClassifier(sim.backbone, preprocessor)
    classifier.save_to_preset(str(tmp_path))
    assert run("embed", tmp_path, *TEXTS, "--json") == 0
    vectors = [line["vector"] for line in printed_json()]
    np.testing.assert_allclose(vectors, classifier.embed(TEXTS), atol=1e-5)
    assert "holds a RoFormerSimClassifier, not a sim" in error_of("similar", tmp_path, *TEXTS)


@pytest.mark.slow
def test_similar(folders, sim, capsys, printed_json):
    arguments = [*TEXTS, "-n", 6, "-k", 3, "--seed", 5, "--max-length", 16, "--json"]
    answers = []
    for name in ("preset", "original-sim"):
        assert run("similar", folders / name, *arguments) == 0
        answers.append(printed_json())
    assert [answer["text"] for answer in answers[0]] == TEXTS
    for answer, other in zip(*answers, strict=True):
        found = [x["text"] for x in answer["similar"]]
        assert found == [x["text"] for x in other["similar"]], "one seed, the same weights"
        vectors = sim.embed([answer["text"], *found])
        cosines = [x["similarity"] for x in answer["similar"]]
        np.testing.assert_allclose(cosines, vectors[1:] @ vectors[0], atol=1e-5)
    assert run("similar", folders / "preset", TEXTS[0], "-n", 4, "--max-length", 12) == 0
    assert TEXTS[0] in capsys.readouterr().out


def test_similar_without_another_text(folders, capsys, monkeypatch):
    monkeypatch.setattr(roformer_tf.RoFormerSim, "similar", lambda self, text, **options: [])
    assert run("similar", folders / "preset", TEXTS[0]) == 0
    printed = capsys.readouterr().out
    assert TEXTS[0] in printed and "only the text itself" in printed


def test_impossible_temperature(folders, error_of):
    message = error_of("similar", folders / "preset", TEXTS[0], "--temperature", 0)
    assert "--temperature must be positive" in message
