"""Reports of `inspect_checkpoint` and of the command line about a folder."""

import json

import numpy as np
import pytest

from roformer_tf.__main__ import main
from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.checkpoint.folder import is_optimizer_slot
from tests.checkpoint.conftest import HEADS, random_folder, read_variables, write_original


def test_a_complete_checkpoint(folder, variables):
    report = inspect_checkpoint(folder)
    assert (report.family, report.masking, report.pooler) == ("roformer", "bidirectional", "tanh")
    assert report.complete
    assert {v.name: v.shape for v in report.variables} == {n: a.shape for n, a in variables.items()}
    assert report.num_parameters == sum(a.size for a in variables.values())
    assert report.num_bytes == sum(a.nbytes for a in variables.values())
    groups = {"embeddings": 3, "segments": 1, "encoder": 32, "pooler": 2, "nsp": 2, "mlm": 5}
    assert report.groups == groups
    assert report.vocabulary_size == 200
    text = str(report)
    parts = "chinese_roformer 26,058 complete bert/encoder/layer_*/ float32 gelu".split()
    for part in (*parts, "(200, 32)"):
        assert part in text


@pytest.mark.parametrize(
    "name, family, heads, expected",
    [
        ("chinese_roformer_L-12_H-768_A-12", "roformer", ("mlm",), ("bidirectional", None)),
        ("chinese_roformer-gpt-char_L-12_H-768_A-12", "roformer", ("mlm",), ("causal", None)),
        ("chinese_roformer-sim-char-ft", "roformer", ("mlm", "pooler"), ("unilm", "linear")),
        ("renamed", "roformer", ("mlm", "pooler"), ("unilm", "linear")),
        ("nezha-base", "nezha", ("mlm",), ("bidirectional", None)),
        ("simple", "roformer", HEADS, ("bidirectional", "tanh")),
        ("v2", "roformer_v2", (), ("bidirectional", None)),
        ("bert", "bert", HEADS, ("bidirectional", "tanh")),
    ],
)
def test_family_and_masking(rng, tmp_path, name, family, heads, expected):
    folder = random_folder(tmp_path / name, rng, family, heads, max_position_embeddings=64)
    report = inspect_checkpoint(folder)
    assert (report.family, report.masking, report.pooler) == (family, *expected)
    assert report.complete
    assert report.groups.get("positions") == (1 if family == "bert" else None)
    assert ("no bias, beta or gamma" in report.reasons[0]) == (family == "roformer_v2")


@pytest.mark.parametrize(
    "name, family",
    [
        ("roformer", "roformer"),
        ("roformer_factorised", "roformer"),
        ("roformer_small_embeddings", "roformer"),
        ("roformer_v2", "roformer_v2"),
        ("roformer_v2_small_embeddings", "roformer_v2"),
        ("bert", "bert"),
        ("nezha", "nezha"),
    ],
)
def test_golden_checkpoints(shared_dir, name, family):
    report = inspect_checkpoint(shared_dir / "golden" / "checkpoints" / name)
    assert (report.family, report.complete) == (family, True)


def test_problems_are_listed(variables, config, tmp_path):
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
    notes = "\n".join(report.notes)
    assert "3 tokens, but vocab_size in bert_config.json is 200" in notes and "word level" in notes
    text = str(report)
    assert "3 problems" in text and "settings (32,), stored (31,)" in text
    assert main(["inspect", str(folder)]) == 1


def test_damaged_settings_and_missing_vocabulary_are_notes(folder):
    (folder / "bert_config.json").write_text("{")
    (folder / "vocab.txt").unlink()
    report = inspect_checkpoint(folder)
    assert report.family == "roformer" and report.config is None and not report.complete
    notes = "\n".join(report.notes)
    assert "not valid JSON" in notes and "vocab.txt is missing" in notes
    assert "cannot be checked without settings" in str(report)


def test_family_argument(folder):
    report = inspect_checkpoint(folder, family="nezha")
    assert report.family == "nezha" and "passed as `family`" in report.reasons[0]
    with pytest.raises(ValueError, match="`family` must be one of"):
        inspect_checkpoint(folder, family="gpt")


@pytest.mark.parametrize(
    "name, slot",
    [
        ("bert/pooler/dense/kernel", False),
        ("bert/encoder/layer_0/output/LayerNorm/gamma", False),
        ("training/Adam/iterations", False),
        ("bert/pooler/dense/kernel/adam_m", True),
        ("bert/pooler/dense/kernel/adam_v", True),
        ("bert/pooler/dense/kernel/Adam_1", True),
        ("bert/pooler/dense/kernel/AdamWeightDecayOptimizer_1", True),
        ("bert/pooler/dense/kernel/LAMBOptimizer", True),
        ("global_step", True),
        ("beta1_power", True),
        ("loss_scale", True),
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
