"""What cannot be exported, and that a failure leaves nothing behind and loses nothing."""

import keras
import pytest
import tensorflow as tf

from roformer_tf import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
    RoFormerTokenizer,
)
from roformer_tf.export import export_saved_model
from roformer_tf.export.folders import new_folder


@pytest.fixture
def classifier(build):
    return build(RoFormerTextClassifier, num_classes=2)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_no_preprocessor(classifier, tmp_path):
    classifier.preprocessor = None
    with pytest.raises(
        ValueError, match="Pass `preprocessor=roformer_tf.RoFormerTextClassifierPre"
    ):
        export_saved_model(classifier, tmp_path / "served")
    with pytest.raises(ValueError, match="RoFormerTokenizer.from_preset"):
        export_saved_model(classifier.backbone, tmp_path / "served")
    assert left_in(tmp_path) == []


def test_another_tasks_preprocessor(build, classifier, tmp_path):
    task = build(RoFormerMaskedLM)
    with pytest.raises(ValueError, match="A RoFormerMaskedLM needs a RoFormerMaskedLMPreproc"):
        export_saved_model(task, tmp_path / "a", preprocessor=classifier.preprocessor)


def test_a_tokenizer_with_more_tokens_than_the_model(build, tmp_path):
    tokenizer = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], word_level=False)
    task = build(RoFormerBackbone, tokenizer=tokenizer)
    more = RoFormerTokenizer([*tokenizer.get_vocabulary(), "好"], word_level=False)
    with pytest.raises(ValueError, match="has 6 tokens, but the model only 5"):
        export_saved_model(task, tmp_path / "a", preprocessor=more)


@pytest.mark.parametrize("task", [None, "folder", keras.layers.Dense(2)])
def test_not_a_model_of_ours(task, tmp_path):
    with pytest.raises(ValueError, match="`task` must be one of RoFormerTextClassifier"):
        export_saved_model(task, tmp_path / "a")


@pytest.mark.parametrize(
    "labels, message",
    [
        (["a"], "must name 2 classes, in their order. Received: 1 labels"),
        (["a", "b", "c"], "must name 2 classes"),
        ("ab", "must be a list of strings"),
        ([0, 1], "must be a list of strings"),
        (["a", "a"], "differ from the others"),
        (["a", "b\nc"], "one line of its own"),
        (["a", ""], "one line of its own"),
    ],
)
def test_labels_that_do_not_fit(classifier, tmp_path, labels, message):
    with pytest.raises(ValueError, match=message):
        export_saved_model(classifier, tmp_path / "a", labels=labels)
    assert left_in(tmp_path) == []


def test_options_of_another_kind_of_model(build, classifier, tokenizer, tmp_path):
    folder = tmp_path / "a"
    with pytest.raises(ValueError, match="are options of a backbone"):
        export_saved_model(classifier, folder, embedding="mean")
    with pytest.raises(ValueError, match="are options of a backbone"):
        export_saved_model(classifier, folder, normalize=True)
    causal = build(RoFormerCausalLM, {"masking": "causal"})
    with pytest.raises(ValueError, match="Only a classifier has labels"):
        export_saved_model(causal, folder, labels=["a", "b"])
    regression = build(RoFormerTextClassifier, num_classes=1)
    with pytest.raises(ValueError, match="has no classes to name"):
        export_saved_model(regression, folder, labels=["a"])
    with pytest.raises(ValueError, match="`top_k` must be an integer from 1 to"):
        export_saved_model(build(RoFormerMaskedLM), folder, top_k=0)
    backbone = classifier.backbone
    with pytest.raises(ValueError, match="needs a backbone with a pooler"):
        export_saved_model(backbone, folder, preprocessor=tokenizer, embedding="pooler")
    with pytest.raises(ValueError, match="`embedding` must be one of"):
        export_saved_model(backbone, folder, preprocessor=tokenizer, embedding="max")


def test_another_keras_backend(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        export_saved_model(classifier, tmp_path / "a")


def test_a_failure_midway_leaves_nothing(classifier, tmp_path, monkeypatch):
    def save(module, folder, signatures):
        (tmp_path / folder / "saved_model.pb").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(classifier, tmp_path / "a")
    assert left_in(tmp_path) == []

    old = tmp_path / "old"
    old.mkdir()
    (old / "saved_model.pb").write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(classifier, old, overwrite=True)
    assert left_in(tmp_path) == ["old"] and (old / "saved_model.pb").read_bytes() == b"old"


def test_what_is_there_is_not_overwritten(classifier, tmp_path, ask):
    folder = tmp_path / "served"
    folder.mkdir()  # empty: nothing to lose
    export_saved_model(classifier, folder, labels=["a", "b"])
    with pytest.raises(FileExistsError, match="already exists.*overwrite=True"):
        export_saved_model(classifier, folder)
    assert (folder / "assets" / "labels.txt").exists()
    export_saved_model(classifier, str(folder), overwrite=True)
    assert not (folder / "assets" / "labels.txt").exists()
    assert "label" not in ask(folder, texts=["好".encode()])
    assert left_in(tmp_path) == ["served"]

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("")
    (tmp_path / "file").write_text("")
    for path in (other, tmp_path / "file"):
        with pytest.raises(FileExistsError, match="Only a SavedModel"):
            export_saved_model(classifier, path, overwrite=True)
    assert left_in(other) == ["thesis.txt"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    import os

    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "saved_model.pb").write_text("old")
    rename = os.rename

    def fail_for_new(source, target):
        if source.name == "new":
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_new)
    with pytest.raises(OSError, match="no"):
        with new_folder(folder, overwrite=True) as temporary:
            (temporary / "saved_model.pb").write_text("new")
    assert left_in(tmp_path) == ["served"]
    assert (folder / "saved_model.pb").read_text() == "old"


def test_a_pair_needs_room(build, tmp_path):
    task = build(RoFormerTextClassifier, preprocessing={"sequence_length": 2}, num_classes=2)
    assert isinstance(task.preprocessor, RoFormerTextClassifierPreprocessor)
    with pytest.raises(ValueError, match="A pair needs a `sequence_length` of at least 3"):
        export_saved_model(task, tmp_path / "a")
    assert left_in(tmp_path) == []
