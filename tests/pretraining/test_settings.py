"""The settings file, its errors, and the check that a run resumes with the same settings."""

import dataclasses
import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from roformer_tf.__main__ import main
from roformer_tf.cli.pretrain import _key_and_value
from roformer_tf.pretraining import (
    MultiTaskSettings,
    PretrainingSettings,
    Stage,
    StagesSchedule,
)
from roformer_tf.pretraining.text_files import absolute_pattern, list_text_files
from roformer_tf.pretraining.training_checkpoints import CHECKPOINT_FORMAT, check_same_run
from tests.pretraining.builders import write_toml

STAGE = {"max_length": 128, "global_batch_size": 8, "steps": 10, "learning_rate": 1e-3}
TASK = {"text": "text", "label": "label", "labels": ["a", "b"], "frequency": 1}
MINIMAL = {"data": {"files": ["a.txt"]}, "model": {"vocabulary": "vocab.txt"}, "stages": [STAGE]}


def changed(**tables):
    return {**MINIMAL, **tables}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed(stages=[]), "at least one stage"),
        (changed(stages=STAGE), r"as a table `\[\[stages\]\]`"),
        (changed(data={}), r"\[data\] lacks files"),
        (changed(data={"files": []}), "at least one file or pattern. Received: files="),
        (changed(model={}), "either `checkpoint` .* or `vocabulary`"),
        (changed(model={"vocabulary": "a", "checkpoint": "b"}), "checkpoint='b', vocabulary='a'"),
        (
            changed(model={"vocabulary": "a", "dtype": "float16"}),
            "`dtype` must be one of 'float32'",
        ),
        (changed(optimizer={"name": "sgd"}), "`name` must be one of 'adamw'.*name='sgd'"),
        (changed(optimizer={"rate": 1}), r"Unknown keys in \[optimizer\]: rate. Known are name"),
        (changed(training={}), "Unknown tables: training. Known are stages, data"),
        (
            changed(data={"files": "a", "piece_characters": 4.0}),
            "piece_characters. `piece_characters` is now `chunk_characters`.",
        ),
        (changed(run={"seed": -1}), r"from 0 to 2\^31 - 1. Received: seed=-1"),
        (changed(run={"checkpoint_every": 0}), "positive integer. Received: checkpoint_every=0"),
        (changed(data={"files": "a", "mask_rate": 1.5}), "from 0 to 1. Received: mask_rate=1.5"),
        (changed(data={"files": "a", "mask_token_rate": 0.95}), "together must not exceed 1"),
        (changed(stages=[{**STAGE, "steps": 2.5}]), r"\[stages\[0\]\] `steps` must be a positive"),
        (changed(stages=[{**STAGE, "max_length": 4}]), "at least 8. Received: max_length=4"),
        (
            changed(stages=[{**STAGE, "learning_rate_factors": {"soon": 1.0}}]),
            "integers from 0. Received: 'soon'",
        ),
    ],
)
def test_wrong_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        PretrainingSettings.from_dict(values)


def test_file_is_named_and_paths_are_relative_to_it(tmp_path):
    path = tmp_path / "stages.toml"
    with pytest.raises(FileNotFoundError, match="There is no settings file"):
        PretrainingSettings.from_file(path)
    path.write_text("[data\n")
    with pytest.raises(ValueError, match="stages.toml is not valid TOML"):
        PretrainingSettings.from_file(path)
    path.write_text(
        '[data]\nfiles = "texts/*.txt"\n[model]\nvocabulary = "../vocab.txt"\n'
        "[[stages]]\nmax_length = 128\nglobal_batch_size = 8\nsteps = 10\nlearning_rate = 1e-3\n"
        "learning_rate_factors = { 5 = 1.0 }\n"
    )
    settings = PretrainingSettings.from_file(path)
    assert settings.data.files == (str(tmp_path / "texts/*.txt"),)
    assert settings.model.vocabulary == str(tmp_path.parent / "vocab.txt")
    text = path.read_text()
    for checkpoint, found in (
        ("hf://user/name@v1", "hf://user/name@v1"),
        ("x.zip/folder", str(tmp_path / "x.zip" / "folder")),
    ):
        path.write_text(text.replace('vocabulary = "../vocab.txt"', f'checkpoint = "{checkpoint}"'))
        assert PretrainingSettings.from_file(path).model.checkpoint == found
    assert settings.stages[0].learning_rate_factors == {5: 1.0}


def test_the_name_of_a_folder_is_no_pattern(tmp_path, monkeypatch):
    folder = tmp_path / "数据 [1]?"
    folder.mkdir()
    for name in ("a.txt", "b [2].txt"):
        (folder / name).write_text("天地")
    tasks = {"topics": {**TASK, "files": "*.txt"}}
    settings = MultiTaskSettings.from_dict(changed(data={"files": "*.txt"}, tasks=tasks))
    settings = settings.with_paths_from(folder)
    both = sorted(map(str, folder.iterdir()))
    assert list_text_files(settings.data.files) == both
    assert list_text_files(settings.tasks["topics"].files) == both
    monkeypatch.chdir(folder)
    for pattern, found in (("*.txt", both), ("b [2].txt", both[1:]), (both[0], both[:1])):
        assert list_text_files(absolute_pattern("", pattern)) == found


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "data.whole_word",
            "False",
            "`whole_word` must be true or false. Received: whole_word='False'",
        ),
        ("data.separators", 5, "`separators` must be a string"),
        ("data.files", 5, "`files` must name at least one"),
        ("data.window_batches", True, "`window_batches` must be an integer"),
        ("run.recompute", "no", "`recompute` must be true or false"),
        ("model.word_level", "no", "`word_level` must be true or false"),
        ("model.layer_norm_epsilon", "abc", "`layer_norm_epsilon` must be a number"),
        ("model.num_heads", 5, "`num_heads` must divide `hidden_dim` into heads of even size"),
        ("model.max_sequence_length", 0, "`max_sequence_length` must be a positive integer"),
        ("model.layer_norm_epsilon", -1, "`layer_norm_epsilon` must be a number from 1e-30"),
        ("model.layer_norm_epsilon", float("nan"), "`layer_norm_epsilon` must be a number"),
        ("model.norm", "batch_norm", "`norm` must be one of 'layer_norm', 'rms_norm'. Received"),
        ("model.activation", "grelu", "Received: activation='grelu'"),
        ("model.embedding_dim", -1, "`embedding_dim` must be a positive integer"),
        ("optimizer.weight_decay", float("inf"), "`weight_decay` must be a number from 0"),
        ("optimizer.epsilon", 0, "`epsilon` must be a number from 1e-30"),
        ("optimizer.beta_2", 1.0, "`beta_2` must be a number from 0 to 0.999999"),
    ],
)
def test_values_of_a_wrong_kind(name, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PretrainingSettings.from_dict(changed()).with_values({name: value})


def test_a_checkpoint_brings_its_own_settings():
    model = {"checkpoint": Path("folder"), "dtype": "mixed_bfloat16"}
    assert PretrainingSettings.from_dict(changed(model=model)).model.checkpoint == "folder"
    with pytest.raises(
        ValueError, match=r"\[model\] `checkpoint` brings .*Received: num_layers, dropout"
    ):
        PretrainingSettings.from_dict(changed(model={**model, "dropout": 0.9, "num_layers": 1}))


def test_values_can_be_set():
    settings = PretrainingSettings.from_dict(changed())
    values = dict(
        map(_key_and_value, ["model.position_scheme=learned", "run.seed=3", "data.files=['a.txt']"])
    )
    other = settings.with_values(values)
    assert other.model.position_scheme == "learned" and other.run.seed == 3
    assert other.data.files == ("a.txt",) and other.stages == settings.stages
    assert settings.with_values({}) == settings
    with pytest.raises(ValueError, match=r"Unknown keys in \[model\]: depth"):
        settings.with_values({"model.depth": 3})
    for name in ("seed", "stages.0", "run", "no.seed"):
        with pytest.raises(ValueError, match="TABLE.KEY.*Received: "):
            settings.with_values({name: 3})


def test_table_4_of_the_paper(repository):
    settings = PretrainingSettings.from_file(repository / "examples/stages_roformer_chinese.toml")
    assert [(s.max_length, s.global_batch_size, s.steps) for s in settings.stages] == [
        (512, 256, 200_000),
        (1536, 256, 12_500),
        (256, 256, 120_000),
        (128, 512, 80_000),
        (1536, 256, 10_000),
        (512, 512, 30_000),
    ]
    schedule = StagesSchedule(settings.stages)
    rates = [float(schedule(step)) for step in (0, 10_000, 20_000, 199_999, 200_000, 452_499)]
    assert rates == pytest.approx([0.0, 5e-6, 1e-5, 1e-5, 1e-5, 1e-5], rel=1e-6)
    assert settings.optimizer.weight_decay == 0.01


def test_scaled_table_keeps_lengths_and_ratios(repository):
    paper, tiny = (
        PretrainingSettings.from_file(repository / "examples" / f"stages_{name}.toml").stages
        for name in ("roformer_chinese", "tiny")
    )
    assert [s.max_length for s in tiny] == [s.max_length for s in paper]
    ratios = {a.global_batch_size / b.global_batch_size for a, b in zip(paper, tiny)}
    assert len(ratios) == 1


def test_learning_rate_of_every_step():
    stages = [
        Stage(8, 1, 4, 1.0, {2: 1.0, 4: 0.5}),
        Stage(8, 1, 2, 0.25),
        Stage(8, 1, 3, 2.0, {0: 1.0}),
    ]
    schedule = StagesSchedule(stages)
    rates = [float(schedule(step)) for step in range(10)]
    assert rates == [0.0, 0.5, 1.0, 0.75, 0.25, 0.25, 2.0, 2.0, 2.0, 2.0]


@pytest.fixture
def saved():
    """Settings, and what is stored after the third step of the second stage."""
    settings = PretrainingSettings.from_dict(changed(stages=[STAGE, {**STAGE, "max_length": 64}]))
    identity = {
        "format": CHECKPOINT_FORMAT,
        "settings": dataclasses.asdict(settings),
        "corpus": "fingerprint",
        "vocabulary": "hash",
    }
    return settings, json.loads(json.dumps({**identity, "step": 13})), identity


def with_settings(identity, settings):
    return {**identity, "settings": dataclasses.asdict(settings)}


def test_the_same_run_resumes(saved):
    settings, stored, identity = saved
    check_same_run(stored, identity)
    moved = dataclasses.replace(
        settings,
        data=dataclasses.replace(settings.data, files=("elsewhere.txt",)),
        run=dataclasses.replace(settings.run, checkpoint_every=7, micro_batch_size=2),
        stages=(settings.stages[0], dataclasses.replace(settings.stages[1], steps=99)),
    )
    check_same_run(stored, with_settings(identity, moved))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"run": dataclasses.replace(s.run, seed=1)}, "run.seed was 0, is 1"),
        (
            lambda s: {"optimizer": dataclasses.replace(s.optimizer, clip_norm=1.0)},
            "optimizer.clip_norm was None, is 1.0",
        ),
        (
            lambda s: {"data": dataclasses.replace(s.data, mask_rate=0.2)},
            "data.mask_rate was 0.15, is 0.2",
        ),
        (
            lambda s: {"stages": (dataclasses.replace(s.stages[0], steps=5), s.stages[1])},
            r"stages\[0\].steps was 10, is 5",
        ),
        (lambda s: {"stages": s.stages[:1]}, "the run is in stage 2, there are 1"),
    ],
)
def test_another_run_does_not_resume(saved, change, message):
    settings, stored, identity = saved
    other = dataclasses.replace(settings, **change(settings))
    with pytest.raises(ValueError, match=message):
        check_same_run(stored, with_settings(identity, other))


@pytest.mark.parametrize(
    ("step", "steps", "message"),
    [
        (4, (4, 10), None),
        (4, (3, 10), r"stages\[0\].steps must be at least 4, the steps that are done, is 3"),
        (10, (14, 10), None),  # the first stage goes on before the second begins
        (10, (9, 10), r"stages\[0\].steps must be at least 10, .*, is 9"),
        (13, (10, 3), None),
        (13, (10, 2), r"stages\[1\].steps must be at least 3, the steps that are done, is 2"),
        (13, (14, 10), r"stages\[0\].steps was 10, is 14"),
        (13, (13,), "the run is in stage 2, there are 1"),
    ],
)
def test_the_steps_that_are_done_stay(saved, step, steps, message):
    """With other numbers the run would not know which stage it is in, so nothing allows them."""
    settings, stored, identity = saved
    stages = [dataclasses.replace(s, steps=n) for s, n in zip(settings.stages, steps)]
    other = with_settings(identity, dataclasses.replace(settings, stages=stages))
    for allow_changes in (False, True):
        with nullcontext() if message is None else pytest.raises(ValueError, match=message):
            check_same_run({**stored, "step": step}, other, allow_changes)


@pytest.mark.parametrize("stages", [[], None, [{}], [{"steps": "10"}], [{"steps": None}]])
def test_a_damaged_state_is_named(saved, stages):
    _, stored, identity = saved
    stored["settings"]["stages"] = stages
    with pytest.raises(ValueError, match="The state of the run is damaged"):
        check_same_run(stored, identity)


def test_other_texts_words_or_formats_do_not_resume(saved):
    _, stored, identity = saved
    with pytest.raises(ValueError, match="texts have changed.*vocabulary has changed"):
        check_same_run(stored, {**identity, "corpus": "x", "vocabulary": "y"})
    for old in ({k: v for k, v in stored.items() if k != "format"}, {**stored, "format": 3}):
        with pytest.raises(ValueError, match="another version of roformer_tf.*the format [13] "):
            check_same_run(old, identity)


def test_a_folder_is_no_settings_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder. .* `SETTINGS.toml --from "):
        PretrainingSettings.from_file(tmp_path)


def test_starting_from_a_checkpoint(tmp_path, monkeypatch):
    """`--from` takes the place of the vocabulary and the sizes."""
    monkeypatch.chdir(tmp_path)
    model = {"vocabulary": "vocab.txt", "num_layers": 3, "word_level": True, "dtype": "float32"}
    settings = PretrainingSettings.from_dict(changed(model=model))
    started = settings.starting_from("a/checkpoint")
    assert started.model.checkpoint == str(tmp_path / "a" / "checkpoint")
    assert (started.model.vocabulary, started.model.word_level) == (None, True)
    assert dataclasses.replace(started, model=settings.model) == settings


def test_from_on_the_command_line(tmp_path, monkeypatch):
    started = []

    def pretrain(settings, *args, **kwargs):
        started.append(settings.model.checkpoint)
        raise SystemExit(0)

    monkeypatch.setattr("roformer_tf.pretraining.pretrain", pretrain)
    path = write_toml(tmp_path / "stages.toml", MINIMAL)
    command = ["pretrain", str(path), "--output", str(tmp_path / "run")]
    for more in ([], ["--from", str(tmp_path)]):
        with pytest.raises(SystemExit):
            main([*command, *more])
    assert started == [None, str(tmp_path)]
