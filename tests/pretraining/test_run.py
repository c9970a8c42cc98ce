"""`pretrain` in this process: stages, what it writes, stopping, resuming, and errors."""

import dataclasses
import json
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.__main__ import main
from roformer_tf.files import lock_folder
from roformer_tf.models import fill_mask
from roformer_tf.pretraining import Pretrainer, PretrainingObjective, PretrainingSettings, pretrain
from roformer_tf.pretraining.models import make_optimizer, make_tokenizer
from roformer_tf.pretraining.settings import ModelSettings
from tests.layers.harness import assert_equal
from tests.pretraining import small_corpus
from tests.pretraining.builders import make_batches, make_pretrainer, rows, run_values, train

# The batches of held-out documents take seconds to set up: few runs have them.
WITHOUT_HELD_OUT = {"held_out": 0.0}
STAGES = [
    {"max_length": 32, "global_batch_size": 8, "steps": 4, "learning_rate": 1e-2},
    {"max_length": 64, "global_batch_size": 4, "steps": 3, "learning_rate": 5e-3},
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    small_corpus.write_texts(folder, count=200)
    small_corpus.write_vocabulary(folder)
    return folder


def make_settings(texts, stages=STAGES, model=None, **tables):
    values = run_values(texts, stages, **tables)
    if model is not None:
        values["model"] = model
    return PretrainingSettings.from_dict(values)


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, pretrain(make_settings(texts), folder, verbose=False)


def test_a_run_passes_through_all_stages(texts, whole):
    folder, result = whole
    assert result.completed and result.signal is None
    log = rows(folder / "log.csv")
    assert [int(row["step"]) for row in log] == list(range(1, 8))
    assert [int(row["max_length"]) for row in log] == [32] * 4 + [64] * 3
    assert [float(row["learning_rate"]) for row in log] == pytest.approx([1e-2] * 4 + [5e-3] * 3)
    assert all(np.isfinite(float(row["loss"])) for row in log)
    held_out = rows(folder / "held_out.csv")
    assert [int(row["step"]) for row in held_out] == [4, 7]
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())] == [
        f"step-{step:09d}" for step in (4, 6, 7)
    ]

    # the exported model is the trained one, and the original's format
    loaded = roformer_tf.RoFormerMaskedLM.from_preset(str(folder / "stage-2-64"))
    assert_equal(loaded.get_weights(), result.task.get_weights())
    assert (folder / "stage-1-32" / "bert_model.ckpt.index").exists()
    # and both take strings
    assert fill_mask(result.task, "一[MASK]三") == fill_mask(loaded, "一[MASK]三")

    # a completed run stays as it is
    before = (folder / "log.csv").read_bytes()
    again = pretrain(make_settings(texts), folder, verbose=False)
    assert again.completed
    assert_equal(again.task.get_weights(), result.task.get_weights())
    assert (folder / "log.csv").read_bytes() == before


@pytest.mark.slow
def test_held_out_texts_are_evaluated_in_micro_batches(texts, tmp_path, monkeypatch):
    sizes = []

    def evaluate(self, batches, micro_batch_size):
        sizes.append(micro_batch_size)
        return {"loss": 1.0, "accuracy": 0.5}

    monkeypatch.setattr(Pretrainer, "evaluate_batches", evaluate)
    stages = [{**STAGES[0], "steps": 1}]
    settings = make_settings(texts, stages=stages, run={"micro_batch_size": 3})
    assert pretrain(settings, tmp_path, verbose=False).completed
    assert sizes == [3]


@pytest.mark.slow
def test_a_stopped_run_is_saved(texts, whole, tmp_path):
    """`test_kills.py` tests how it resumes."""
    folder, _ = whole

    def stop(batch, logs):
        if batch == 1:  # the second
            signal.raise_signal(signal.SIGTERM)

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=stop)
    stopped = pretrain(make_settings(texts), tmp_path, callbacks=callback, verbose=False)
    assert not stopped.completed
    assert stopped.signal == signal.SIGTERM
    assert len(rows(tmp_path / "log.csv")) == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000002"]
    for mine, other in zip(rows(tmp_path / "log.csv"), rows(folder / "log.csv")):
        for column in ("step", "tokens", "loss", "accuracy"):
            assert mine[column] == other[column]


def test_other_settings_are_an_error_for_the_same_folder(texts, whole):
    with pytest.raises(ValueError, match="run.seed was 4, is 5"):
        pretrain(make_settings(texts, run={"seed": 5}), whole[0], verbose=False)
    # all 7 steps are those of the first stage now
    longer = make_settings(texts, stages=[{**STAGES[0], "steps": 8}, STAGES[1]])
    with pytest.raises(ValueError, match=r"stages\[0\].steps was 4, is 8"):
        pretrain(longer, whole[0], verbose=False, allow_changes=True)


@pytest.mark.parametrize(
    ("objective", "packing"),
    [("causal_lm", "block_diagonal"), ("unilm", "none")],
)
@pytest.mark.slow
def test_other_objectives(texts, tmp_path, objective, packing):
    stages = [{**STAGES[0], "steps": 12, "learning_rate": 2e-2}]
    settings = make_settings(
        texts,
        stages=stages,
        data={"objective": objective, "packing": packing, **WITHOUT_HELD_OUT},
    )
    result = pretrain(settings, tmp_path, verbose=False)
    assert isinstance(result.task, roformer_tf.RoFormerCausalLM)
    log = rows(tmp_path / "log.csv")
    losses = [float(row["loss"]) for row in log]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    report = roformer_tf.checkpoint.inspect_checkpoint(tmp_path / "stage-1-32")
    assert report.complete


def test_a_checkpoint_is_trained_and_bad_lines_are_reported(texts, whole, tmp_path, caplog):
    folder, result = whole
    path = tmp_path / "bad.jsonl"
    lines = [f'{{"text": "{"一二三四五" * 20}"}}' for _ in range(30)]
    path.write_text("\n".join([*lines, "not json"]) + "\n")
    data = {"files": [str(path)], "cache": None, **WITHOUT_HELD_OUT}
    stages = [{**STAGES[0], "steps": 1, "learning_rate": 0.0}]
    model = {"checkpoint": str(folder / "stage-2-64")}
    settings = make_settings(texts, stages=stages, data=data, model=model)
    trained = pretrain(settings, tmp_path / "run", verbose=False)
    assert_equal(trained.task.get_weights(), result.task.get_weights())
    assert "1 lines of the texts cannot be read" in caplog.text and "bad.jsonl:31" in caplog.text
    strict = make_settings(texts, stages=stages, data={**data, "max_bad_lines": 0})
    with pytest.raises(ValueError, match="data.max_bad_lines"):
        pretrain(strict, tmp_path / "other", verbose=False)


@pytest.mark.slow
def test_a_scheme_without_original_format_is_exported_as_a_preset(texts, tmp_path):
    changes = {
        "model.position_scheme": "sinusoidal_relative",
        "model.position_options": {"max_distance": 3},
    }
    settings = make_settings(texts, stages=STAGES[:1], data=WITHOUT_HELD_OUT).with_values(changes)
    result = pretrain(settings, tmp_path, verbose=False)
    loaded = roformer_tf.RoFormerMaskedLM.from_preset(str(tmp_path / "stage-1-32"))
    assert loaded.backbone.position_options == {"max_distance": 3}
    assert_equal(loaded.get_weights(), result.task.get_weights())
    assert (
        loaded.preprocessor.tokenizer.get_vocabulary() == small_corpus.tokenizer().get_vocabulary()
    )
    # a completed run can be started again
    assert pretrain(settings, tmp_path, verbose=False).completed


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in ("lamb", "adafactor")), "original_adamw"],
)
def test_other_optimizers(texts, name):
    settings = make_settings(texts, optimizer={"name": name, "weight_decay": 0.5})
    rng = np.random.default_rng(1)
    results = []
    for decay in (0.0, 0.5):
        changed = dataclasses.replace(settings.optimizer, weight_decay=decay)
        keras.utils.set_random_seed(1)
        pretrainer = make_pretrainer(make_optimizer(changed, lambda: 0.05))
        variables = pretrainer.trainable_variables
        for weight in variables:
            if weight.path.endswith(("beta", "bias")):  # zeros do not show decay
                weight.assign(weight + 1.0)
        if not results:
            gradients = [rng.normal(size=v.shape).astype("float32") for v in variables]
        pretrainer.optimizer.apply([tf.constant(g) for g in gradients], variables)
        results.append({v.path: v.numpy() for v in variables})
    decayed = {p for p in results[0] if not np.array_equal(results[0][p], results[1][p])}
    expected = {p for p in results[0] if p.endswith(("kernel", "embeddings"))}
    # the original excludes names with "Norm" and "bias", and yet this one decays there
    assert decayed == expected | ({"head/output_bias"} if name == "original_adamw" else set())
    losses = train(pretrainer, make_batches(rng, count=1), steps=8)["loss"]
    assert losses[-1] < losses[0]
    settings = make_optimizer(settings.optimizer, lambda: 0.05)
    assert settings.global_clipnorm == 1.0


@pytest.mark.slow
def test_nothing_is_lost_by_a_start_that_fails(texts, whole, tmp_path):
    """An earlier run's models stay: without a checkpoint, with more steps for the last stage."""
    folder, _ = whole
    shutil.copytree(folder, tmp_path / "run")
    model = tmp_path / "run" / "stage-2-64"
    longer = [STAGES[0], {**STAGES[1], "steps": 5}]
    with pytest.raises(ValueError, match="Not even one sequence"):
        pretrain(
            make_settings(texts, stages=longer, run={"memory": "1KB"}),
            tmp_path / "run",
            verbose=False,
        )
    assert model.is_dir()

    done = pretrain(make_settings(texts, stages=longer), tmp_path / "run", verbose=False)
    assert done.completed and model.is_dir()
    assert not model.with_name("stage-2-64-earlier").exists()
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["stages"][1]["steps"] == 5

    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(
        ValueError, match="no checkpoint to resume from, but the models .*stage-1-32"
    ):
        pretrain(make_settings(texts, run={"seed": 9}), tmp_path / "run", verbose=False)
    assert model.is_dir()


def test_one_process_at_a_time(texts, tmp_path):
    with lock_folder(tmp_path), pytest.raises(BlockingIOError, match="Another process is using"):
        pretrain(make_settings(texts), tmp_path, verbose=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        pretrain(make_settings(texts), tmp_path / "file", verbose=False)
    cache = {"cache": str(tmp_path / "file")}
    with pytest.raises(NotADirectoryError, match="Expected a folder .*/file is a file"):
        pretrain(make_settings(texts, data=cache), tmp_path / "run", verbose=False)


def test_only_masked_language_models_need_a_mask_token(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "天", "地"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = make_tokenizer(ModelSettings(vocabulary=str(tmp_path / "vocab.txt")))
    assert tokenizer(["天地"]) == [[4, 5]]
    PretrainingObjective(tokenizer, "causal_lm")
    with pytest.raises(ValueError, match=r"without: mask. Add its token .*\[MASK\]"):
        PretrainingObjective(tokenizer, "masked_lm")


def test_wrong_arguments(texts, tmp_path):
    missing = make_settings(texts, data={"files": [str(tmp_path / "none*.txt")]})
    with pytest.raises(FileNotFoundError, match="none"):
        pretrain(missing, tmp_path / "run", verbose=False)
    (tmp_path / "blank.txt").write_text("\u200b" * 400 + "\n\n" * 100, encoding="utf-8")
    blank = make_settings(texts, data={"files": [str(tmp_path / "blank.txt")], **WITHOUT_HELD_OUT})
    with pytest.raises(ValueError, match="^A window of .* Sequences in the window: 0$"):
        pretrain(blank, tmp_path / "blank", verbose=False)


def test_another_backend_is_an_error(texts, tmp_path, monkeypatch):
    """At once, not after reading all texts."""
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="needs the TensorFlow backend of Keras. Received: 'jax'"):
        pretrain(make_settings(texts), tmp_path / "run", verbose=False)
    assert not (tmp_path / "run").exists()


def test_command_line_errors(tmp_path, capsys):
    assert main(["pretrain", str(tmp_path / "no.toml"), "--output", str(tmp_path)]) == 2
    assert "There is no settings file" in capsys.readouterr().err
    path = tmp_path / "wrong.toml"
    path.write_text('[data]\nfiles = ["a.txt"]\n[model]\nvocabulary = "v.txt"\n')
    assert main(["pretrain", str(path), "--output", str(tmp_path)]) == 2
    assert "at least one stage" in capsys.readouterr().err
