"""The page about a saved model: right for its class, the same every time, never over a person's."""

import os
import re

import pytest
import yaml

import roformer_tf
from tests.test_from_preset import OPTIONS, source

CLASSES = ("RoFormerMaskedLM", "RoFormerTextClassifier", "RoFormerTokenClassifier",
         "RoFormerQuestionAnswering", "RoFormerMultipleChoice", "RoFormerSim",
         "RoFormerSimClassifier", "RoFormerCausalLM", "RoFormerSeq2SeqLM", "RoFormerBackbone",
         "RoFormerSeq2SeqBackbone")  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Function that returns a folder with a model of a class."""
    root = tmp_path_factory.mktemp("cards")

    def folder(name):
        folder, kind = root / name, "encoder"
        if "Sim" in name or "Seq2Seq" in name:
            kind = "seq_2_seq" if "Seq2Seq" in name else "sim"
        if not folder.exists():
            cls = getattr(roformer_tf, name)
            of = root / kind
            if not of.exists():
                source(kind).save_to_preset(of)
            cls.from_preset(of, **OPTIONS.get(name, {})).save_to_preset(folder)
        return folder

    return folder


def card_of(folder):
    """Returns the header of a card and the program in it."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), re.search("```python\n(.*)```", body, re.DOTALL)[1]


@pytest.mark.eager  # each program makes one call, or two
@pytest.mark.parametrize(
    "name",
    [
        name if name == "RoFormerMaskedLM" else pytest.param(name, marks=pytest.mark.slow)
        for name in CLASSES
    ],
)
def test_the_example_of_every_class_runs(saved, name, monkeypatch):
    header, program = card_of(saved(name))
    assert header["library_name"] == "keras-hub" and header["license"] == "unknown"
    assert {"roformer", "keras"} <= set(header["tags"])
    assert header["pipeline_tag"]
    assert f"roformer_tf.{name}.from_preset(folder)" in program
    monkeypatch.chdir(saved(name))
    names = {}
    exec(compile(program, "README.md", "exec"), names)  # the card's own text
    assert type(names["model"]) is getattr(roformer_tf, name)


def test_a_card_is_the_same_every_time_and_describes_the_model(saved, tmp_path):
    model = source("encoder")
    model.save_to_preset(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text == (saved("RoFormerMaskedLM") / "README.md").read_text(encoding="utf-8")
    assert f"| parameters | {model.count_params():,} |" in text
    assert f"| hidden size | {model.backbone.hidden_dim} |" in text
    assert card_of(tmp_path)[0]["language"] == ["zh"]
    assert "language" not in card_of(saved("RoFormerSeq2SeqLM"))[0]
    labels = roformer_tf.RoFormerTextClassifier.from_preset(tmp_path, labels=["好", "坏"])
    labels.save_to_preset(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| labels | 好, 坏 |" in text and "# RoFormerTextClassifier" in text


def test_a_page_that_a_person_wrote_stays(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("mine")
    model = source("encoder")
    for _ in range(2):
        model.save_to_preset(tmp_path)
        assert page.read_text() == "mine"
        assert "README.md" not in (tmp_path / "SHA256SUMS").read_text()
    page.unlink()
    model.save_to_preset(tmp_path)
    assert "RoFormerMaskedLM" in page.read_text()
    assert "  README.md\n" in (tmp_path / "SHA256SUMS").read_text()
    page.write_text(page.read_text() + "Trained on my data.\n")
    roformer_tf.RoFormerMaskedLM.from_preset(tmp_path)  # an edited page is no damaged model
    model.save_to_preset(tmp_path)
    assert page.read_text().endswith("Trained on my data.\n")
    assert os.system(f"cd {tmp_path} && sha256sum --quiet --check SHA256SUMS") == 0


def test_parts_leave_the_card_of_the_model(tmp_path):
    tokenizer = source("encoder").preprocessor.tokenizer
    tokenizer.save_to_preset(tmp_path)
    assert not (tmp_path / "README.md").exists()
    source("encoder").backbone.save_to_preset(tmp_path)
    tokenizer.save_to_preset(tmp_path)
    assert "# RoFormerBackbone" in (tmp_path / "README.md").read_text()
    assert "  README.md\n" in (tmp_path / "SHA256SUMS").read_text()
