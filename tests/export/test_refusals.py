"""What cannot be exported, and that a failure leaves nothing behind and loses nothing."""

import keras
import pytest
import tensorflow as tf

from roformer_tf import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSeq2SeqLM,
    RoFormerTextClassifier,
    RoFormerTokenizer,
)
from roformer_tf.export import export_saved_model
from tests.models.seq_2_seq import backbone as seq_2_seq_backbone


@pytest.fixture(scope="module")
def classifier(build):
    return build(RoFormerTextClassifier, num_classes=2)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_refused(folder, message, task, **options):
    with pytest.raises(ValueError, match=message):
        export_saved_model(task, folder / "served", **options)
    assert left_in(folder) == []


def test_no_preprocessor(build, tmp_path):
    classifier = build(RoFormerTextClassifier, num_classes=2)
    classifier.preprocessor = None
    message = "Pass `preprocessor=roformer_tf.RoFormerTextClassifierPre"
    assert_refused(tmp_path, message, classifier)
    assert_refused(tmp_path, "RoFormerTokenizer.from_preset", classifier.backbone)
    translator = RoFormerSeq2SeqLM(seq_2_seq_backbone(num_layers=1))
    message = "RoFormerSeq2SeqLMPreprocessor.*RoFormerSentencePieceTokenizer.from_preset"
    assert_refused(tmp_path, message, translator)


def test_another_tasks_preprocessor(build, classifier, tmp_path):
    message = "A RoFormerMaskedLM needs a RoFormerMaskedLMPreproc"
    options = {"preprocessor": classifier.preprocessor}
    assert_refused(tmp_path, message, build(RoFormerMaskedLM), **options)


def test_a_tokenizer_with_more_tokens_than_the_model(build, tmp_path):
    tokenizer = RoFormerTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], word_level=False)
    task = build(RoFormerBackbone, tokenizer=tokenizer)
    more = RoFormerTokenizer([*tokenizer.get_vocabulary(), "好"], word_level=False)
    assert_refused(tmp_path, "has 6 tokens, but the model only 5", task, preprocessor=more)


@pytest.mark.parametrize("task", [None, "folder", keras.layers.Dense(2)])
def test_not_a_model_of_ours(task, tmp_path):
    assert_refused(tmp_path, "`task` must be one of RoFormerTextClassifier", task)


def test_options_that_do_not_fit(build, classifier, tokenizer, tmp_path):
    causal = build(RoFormerCausalLM, {"masking": "causal"})
    regression = build(RoFormerTextClassifier, num_classes=1)
    masked_lm = build(RoFormerMaskedLM)
    for task, options, message in [
        (classifier, {"labels": ["a", "b", "c"]}, "must name 2 classes.*Received: 3 labels"),
        (classifier, {"embedding": "mean"}, "are options of a backbone"),
        (classifier, {"normalize": True}, "are options of a backbone"),
        (causal, {"labels": ["a", "b"]}, "`labels` are for a RoFormerTextClassifier"),
        (regression, {"labels": ["a"]}, "has no classes to name"),
        (masked_lm, {"top_k": 0}, "`top_k` must be an integer from 1 to"),
        (classifier.backbone, {"embedding": "pooler"}, "needs a backbone with a pooler"),
        (classifier.backbone, {"embedding": "max"}, "`embedding` must be one of"),
    ]:
        if task is classifier.backbone:
            options["preprocessor"] = tokenizer
        assert_refused(tmp_path, message, task, **options)


def test_a_pair_needs_room(build, tmp_path):
    task = build(RoFormerTextClassifier, preprocessing={"sequence_length": 2}, num_classes=2)
    assert_refused(tmp_path, "A pair needs a `sequence_length` of at least 3", task)


def test_another_keras_backend(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    assert_refused(tmp_path, "KERAS_BACKEND=tensorflow", classifier)


@pytest.mark.parametrize("folder", ["", None, b"served", 3, "gs://bucket/served"])
def test_not_a_local_folder(classifier, folder):
    with pytest.raises(ValueError, match="`folder` must be the path of the local folder to write"):
        export_saved_model(classifier, folder)


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


def test_existing_folders(classifier, tmp_path, ask):
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
