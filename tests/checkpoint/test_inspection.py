"""What `inspect_checkpoint` and the command line report about a folder."""

import json

import numpy as np
import pytest

from roformer_tf.__main__ import main
from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.checkpoint.folder import is_optimizer_slot
from tests.checkpoint.conftest import random_variables, read_variables, write_original
from tests.oracles.run_original import small_config


def test_a_complete_checkpoint(folder, variables):
    report = inspect_checkpoint(folder)
    assert (report.family, report.masking, report.pooler) == ("roformer", "bidirectional", "tanh")
    assert report.complete
    assert {v.name: v.shape for v in report.variables} == {n: a.shape for n, a in variables.items()}
    assert report.num_parameters == sum(a.size for a in variables.values())
    assert report.num_bytes == sum(a.nbytes for a in variables.values())
    assert report.groups == {
        "embeddings": 3,
        "segments": 1,
        "encoder": 32,
        "pooler": 2,
        "nsp": 2,
        "mlm": 5,
    }
    assert report.vocabulary_size == 200
    text = str(report)
    for part in (
        "chinese_roformer",
        "26,058",
        "complete",
        "bert/encoder/layer_*/",
        "(200, 32)",
        "float32",
        "gelu",
    ):
        assert part in text


@pytest.mark.parametrize(
    "name, heads, expected",
    [
        ("chinese_roformer_L-12_H-768_A-12", ("mlm",), ("roformer", "bidirectional", None)),
        ("chinese_roformer-gpt-char_L-12_H-768_A-12", ("mlm",), ("roformer", "causal", None)),
        (
            "chinese_roformer-sim-char-ft_L-6_H-384_A-6",
            ("mlm", "pooler"),
            ("roformer", "unilm", "linear"),
        ),
        ("renamed", ("mlm", "pooler"), ("roformer", "unilm", "linear")),
        ("nezha-base", ("mlm",), ("nezha", "bidirectional", None)),
        ("simple", ("mlm", "pooler", "nsp"), ("roformer", "bidirectional", "tanh")),
    ],
)
def test_family_and_masking(rng, config, tmp_path, name, heads, expected):
    folder = write_original(tmp_path / name, random_variables(rng, config, heads=heads), config)
    report = inspect_checkpoint(folder)
    assert (report.family, report.masking, report.pooler) == expected
    assert report.reasons and not report.missing and not report.unknown


def test_v2(v2_folder):
    report = inspect_checkpoint(v2_folder)
    assert (report.family, report.complete) == ("roformer_v2", True)
    assert "no bias, beta or gamma" in report.reasons[0]


def test_bert_has_its_own_table(rng, tmp_path):
    config = small_config(max_position_embeddings=64)
    folder = write_original(tmp_path / "bert", random_variables(rng, config, "bert"), config)
    report = inspect_checkpoint(folder)
    assert (report.family, report.complete, report.pooler) == ("bert", True, "tanh")
    assert report.groups["positions"] == 1


@pytest.mark.parametrize(
    "name, family",
    [("roformer", "roformer"), ("roformer_factorised", "roformer"), ("roformer_small_embeddings", "roformer"),
     ("roformer_v2", "roformer_v2"), ("roformer_v2_small_embeddings", "roformer_v2"), ("bert", "bert"),
     ("nezha", "nezha")],
)  # fmt: skip
def test_golden_checkpoints(shared_dir, name, family):
    report = inspect_checkpoint(shared_dir / "golden" / "checkpoints" / name)
    assert (report.family, report.complete) == (family, True)


def test_what_is_wrong_is_named(rng, config, tmp_path):
    variables = random_variables(rng, config)
    del variables["cls/predictions/output_bias"], variables["bert/pooler/dense/kernel"]
    del variables["bert/pooler/dense/bias"]  # a whole head may be absent
    variables["bert/strange"] = np.zeros(3, "float32")
    variables["bert/encoder/layer_0/output/dense/bias"] = np.zeros(31, "float32")
    variables["bert/embeddings/word_embeddings/adam_m"] = np.zeros((200, 32), "float32")
    folder = write_original(tmp_path / "a", variables, config, tokens=["[PAD]", "[UNK]", "天气"])
    report = inspect_checkpoint(folder)
    assert report.missing == ("cls/predictions/output_bias",)
    assert report.unknown == ("bert/strange",)
    assert report.wrong_shape == {"bert/encoder/layer_0/output/dense/bias": ((32,), (31,))}
    assert report.optimizer_slots == ("bert/embeddings/word_embeddings/adam_m",)
    assert any(
        "3 tokens, but vocab_size in bert_config.json is 200" in note for note in report.notes
    )
    assert any("word level" in note for note in report.notes)
    text = str(report)
    assert "3 problems" in text and "settings (32,), stored (31,)" in text
    assert main(["inspect", str(folder)]) == 1


def test_damage_beside_the_checkpoint_is_a_note(folder):
    (folder / "bert_config.json").write_text("{")
    (folder / "vocab.txt").unlink()
    report = inspect_checkpoint(folder)
    assert report.family == "roformer" and report.config is None and not report.complete
    assert any("not valid JSON" in note for note in report.notes)
    assert any("no vocabulary file" in note for note in report.notes)
    assert "cannot be checked without settings" in str(report)


def test_the_family_can_be_given(folder):
    report = inspect_checkpoint(folder, family="nezha")
    assert report.family == "nezha" and "passed as `family`" in report.reasons[0]
    with pytest.raises(ValueError, match="`family` must be one of"):
        inspect_checkpoint(folder, family="gpt")


@pytest.mark.parametrize(
    "name, slot",
    [
        ("bert/pooler/dense/kernel", False),
        ("bert/encoder/layer_0/output/LayerNorm/gamma", False),
        ("bert/pooler/dense/kernel/adam_m", True),
        ("bert/pooler/dense/kernel/adam_v", True),
        ("bert/pooler/dense/kernel/Adam_1", True),
        ("bert/pooler/dense/kernel/AdamWeightDecayOptimizer_1", True),
        ("bert/pooler/dense/kernel/LAMBOptimizer", True),
        ("global_step", True),
        ("beta1_power", True),
        ("loss_scale", True),
        ("training/Adam/iterations", False),
    ],
)
def test_optimizer_slots(name, slot):
    assert is_optimizer_slot(name) is slot


def test_command_line_prints_json(folder, capsys):
    assert main(["inspect", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["family"] == "roformer"
    assert report["num_parameters"] == 26058
    assert {tuple(v) for v in report["variables"]} == {("name", "shape", "dtype", "group")}


def test_command_line_converts_there_and_back(folder, tmp_path, capsys):
    pytest.importorskip("safetensors")
    assert main(["convert", str(folder), str(tmp_path / "hf")]) == 0
    assert "43 variables in the huggingface layout" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "back"), "--to", "original"]) == 0
    assert len(read_variables(tmp_path / "back" / "bert_model.ckpt")) == 43


def test_command_line_says_what_went_wrong(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: No checkpoint in ")
    with pytest.raises(SystemExit) as stop:
        main(["no-such-command"])
    assert stop.value.code == 2
