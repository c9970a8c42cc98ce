"""`classify` prints what the model gives; commands read standard input as a stream."""

import io

import pytest

import roformer_tf
from roformer_tf.cli import shared
from tests.cli.conftest import TEXTS, run
from tests.models import builders

NAMES = ["bad", "fair", "good"]


@pytest.fixture(scope="module")
def classifier():
    return builders.task("classifier", preprocessor={}, num_classes=None, labels=NAMES)


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    classifier.save_to_preset(folder)
    return folder


def test_classify(folder, classifier, capsys, printed_json):
    assert run("classify", folder, *TEXTS, "--json", "--top-k", 2) == 0
    for line, text, expected in zip(
        printed_json(), TEXTS, classifier.classify(TEXTS, top_k=2), strict=True
    ):
        assert line["text"] == text
        assert [answer["label"] for answer in line["classes"]] == [name for name, _ in expected]
        for answer, (_, probability) in zip(line["classes"], expected, strict=True):
            assert answer["probability"] == pytest.approx(probability, rel=1e-5)
    assert run("classify", folder, TEXTS[0]) == 0
    printed = capsys.readouterr().out
    assert TEXTS[0] in printed and all(name in printed for name in NAMES)


def test_standard_input_is_a_stream(folder, monkeypatch, calls_of, printed_json):
    """Lines are read when their turn comes, and the answers keep their order."""
    monkeypatch.setattr(shared, "WINDOW", 3)
    read, printed = [], calls_of(shared, "print_json")

    class Lines(io.StringIO):
        def __next__(self):
            read.append(len(printed))
            return super().__next__()

    texts = [builders.CHARACTERS[i : i + 1 + i % 5] for i in range(8)]
    monkeypatch.setattr("sys.stdin", Lines("\n".join([*texts[:2], "", *texts[2:]])))
    assert run("classify", folder, "--json") == 0
    assert [line["text"] for line in printed_json()] == texts
    assert read == [0, 0, 0, 2, 2, 2, 5, 5, 5, 8][: len(read)] and len(read) >= 9


def test_an_original_folder_is_no_classifier(tmp_path, error_of):
    from roformer_tf.checkpoint import save_checkpoint

    save_checkpoint(roformer_tf.RoFormerMaskedLM(builders.backbone()), tmp_path)
    assert "it has no classifier" in error_of("classify", tmp_path, TEXTS[0])
