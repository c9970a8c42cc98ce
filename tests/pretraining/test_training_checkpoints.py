"""Checkpoints appear complete or not at all, and damaged ones are skipped."""

import os

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.pretraining import Stage, TrainingCheckpoints
from roformer_tf.pretraining.training_checkpoints import StageModels
from tests.models import builders


@pytest.fixture
def variables(rng):
    return {
        "model/kernel": tf.Variable(rng.normal(size=(3, 4)).astype("float32")),
        "optimizer/step": tf.Variable(5, dtype=tf.int64),
    }


def test_an_empty_state_counts_as_damaged(tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path)
    weights = {"w": tf.Variable([1.0])}
    for step in (1, 2):
        checkpoints.save(step, weights, {})
    for text in ("{}", "[]", "no", '{"step": 99}', '{"step": true}', '{"step": null}', "[" * 10**5):
        (tmp_path / "step-000000002" / "state.json").write_text(text)
        assert checkpoints.restore(weights)["step"] == 1
        assert checkpoints.newest_state()["step"] == 1


def test_round_trip_keeps_the_newest(variables, tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path / "run [1]", keep=2)
    assert checkpoints.restore(variables) is None
    kernel = variables["model/kernel"].numpy()
    for step in (10, 20, 30):
        variables["optimizer/step"].assign(step)
        checkpoints.save(step, variables, {"corpus": "x"})
    assert checkpoints.steps() == [20, 30]
    variables["model/kernel"].assign(np.zeros((3, 4)))
    variables["optimizer/step"].assign(0)
    assert checkpoints.restore(variables) == {"corpus": "x", "step": 30}
    np.testing.assert_array_equal(variables["model/kernel"].numpy(), kernel)
    assert int(variables["optimizer/step"]) == 30


@pytest.mark.parametrize(
    "damage", ["cut data", "flip data", "cut index", "no index", "no state", "cut state"]
)
def test_a_damaged_checkpoint_is_skipped(variables, tmp_path, damage, caplog):
    checkpoints = TrainingCheckpoints(tmp_path)
    checkpoints.save(10, variables, {})
    newest = checkpoints.save(20, variables, {})
    what, part = damage.split()
    name = {"data": "variables.data-00000-of-00001", "index": "variables.index"}.get(
        part, "state.json"
    )
    content = (newest / name).read_bytes()
    if what == "no":
        (newest / name).unlink()
    elif what == "cut":
        (newest / name).write_bytes(content[: len(content) // 2])
    else:
        (newest / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert checkpoints.restore(variables)["step"] == 10
    assert "step-000000020 is damaged and skipped" in caplog.text
    # the run resumes there and writes step 20 again
    checkpoints.save(20, variables, {"new": True})
    assert checkpoints.restore(variables) == {"new": True, "step": 20}


def test_all_damaged_is_an_error(variables, tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path)
    (checkpoints.save(10, variables, {}) / "state.json").unlink()
    with pytest.raises(ValueError, match="All checkpoints are damaged: .*step-000000010"):
        checkpoints.restore(variables)


def test_a_checkpoint_of_another_model_is_an_error(variables, tmp_path):
    TrainingCheckpoints(tmp_path).save(10, variables, {})
    other = {
        "model/kernel": tf.Variable(np.zeros((3, 5), "float32")),
        "model/bias": tf.Variable(0.0),
    }
    with pytest.raises(ValueError, match="another model or optimizer") as error:
        TrainingCheckpoints(tmp_path).restore(other)
    assert "missing: model/bias" in str(error.value)
    assert "unexpected: optimizer/step" in str(error.value)
    assert "model/kernel (3, 4), not (3, 5)" in str(error.value)


@pytest.mark.parametrize("where", ["variables", "rename"])
def test_a_full_disk_loses_nothing(variables, tmp_path, monkeypatch, where):
    checkpoints = TrainingCheckpoints(tmp_path)
    checkpoints.save(10, variables, {})

    def full(*args, **kwargs):
        if where == "rename":
            raise OSError(28, "No space left on device")
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "rename":
            patch.setattr(os, "rename", full)
        else:
            patch.setattr(tf.raw_ops, "SaveV2", full)
        with pytest.raises(OSError, match="No space left on device|The disk is full"):
            checkpoints.save(20, variables, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]
    assert checkpoints.restore(variables)["step"] == 10


def test_what_a_killed_process_left_is_removed(variables, tmp_path):
    checkpoints = TrainingCheckpoints(tmp_path)
    (tmp_path / ".saving-0123").mkdir()
    (tmp_path / ".saving-0123" / "variables.data-00000-of-00001").write_bytes(b"half")
    assert checkpoints.restore(variables) is None
    checkpoints.save(10, variables, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]


@pytest.mark.parametrize("why", ["its positions", "its activation", "added tokens"])
def test_stage_models_that_are_presets(tmp_path, why):
    tokenizer = builders.new_tokenizer()
    if why == "added tokens":
        tokenizer.add_tokens(["天地"])
    backbone = builders.backbone(
        position_scheme="t5" if why == "its positions" else "rotary",
        activation="elu" if why == "its activation" else "gelu",
        vocabulary_size=tokenizer.vocabulary_size(),
    )
    task = roformer_tf.RoFormerMaskedLM(backbone)
    classifier = roformer_tf.RoFormerTextClassifier(
        backbone, 2, roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    )
    models = StageModels(tmp_path, [Stage(16, 4, 2, 1e-3)])
    models.save(0, task, tokenizer, {"topics": classifier})
    models.save(0, task, tokenizer, {"topics": classifier})  # again, over the first
    for folder in (models.path(0), models.path(0) / "tasks" / "topics"):
        digests = (folder / "SHA256SUMS").read_text()
        assert "task.json" in digests and "/task.json" not in digests
        assert (folder / "README.md").is_file()
    again = roformer_tf.RoFormerMaskedLM.from_preset(models.path(0))
    assert again.preprocessor.tokenizer(["天地玄"]) == tokenizer(["天地玄"])
    assert sorted(x.name for x in tmp_path.iterdir()) == ["stage-1-16"]


@pytest.mark.parametrize(
    "settings",
    [
        {"word_level": False},  # the vocabulary has words
        {"lowercase": False},
        {"user_words": ["地玄"]},
        {"start_token": "[unused0]"},
        {"word_maxlen": 3},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_stage_models_keep_the_settings_of_the_tokenizer(tmp_path, settings):
    words = ["天地", "地玄", "Hello", "hello", "##lo"]
    (tmp_path / "dictionary.txt").write_text("天地 10", encoding="utf-8")
    dictionary = {} if "word_level" in settings else {"dictionary": tmp_path / "dictionary.txt"}
    vocabulary = [*builders.tokenizer().get_vocabulary(), *words]
    tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, **dictionary, **settings)
    assert set(tokenizer.settings_beside_vocabulary()) == {*dictionary, *settings}
    backbone = builders.backbone(vocabulary_size=tokenizer.vocabulary_size())
    models = StageModels(tmp_path, [Stage(16, 4, 2, 1e-3)])
    models.save(0, roformer_tf.RoFormerMaskedLM(backbone), tokenizer)
    again = roformer_tf.RoFormerTokenizer.from_preset(models.path(0))
    for name, value in settings.items():
        assert getattr(again, name) == value
    texts = ["天地玄黄 Hello", "hellolo 天 地玄"]
    assert again(texts) == tokenizer(texts)
    assert again.encode(texts) == tokenizer.encode(texts)


def test_stage_models_of_plain_tokenizers_are_in_the_original_format(tmp_path):
    models = StageModels(tmp_path, [Stage(16, 4, 2, 1e-3)])
    models.save(0, roformer_tf.RoFormerMaskedLM(builders.backbone()), builders.tokenizer())
    assert (models.path(0) / "bert_config.json").is_file()
