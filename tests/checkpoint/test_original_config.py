"""Reads `bert_config.json` in both spellings, and writes it; bad settings raise errors."""

import json

import pytest

import roformer_tf
from roformer_tf.checkpoint.damage import read_json
from roformer_tf.checkpoint.original_config import backbone_arguments, original_config
from tests.checkpoint.test_original_files import LFS_POINTER
from tests.oracles.run_original import small_config


def test_the_released_spelling():
    arguments = backbone_arguments(small_config(hidden_dropout_prob=0.2), "roformer")
    assert arguments == {
        "vocabulary_size": 200,
        "num_layers": 2,
        "num_heads": 4,
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "embedding_dim": None,
        "num_segments": 2,
        "dropout": 0.2,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "norm": "layer_norm",
        "layer_norm_epsilon": 1e-12,
        "position_scheme": "rotary",
    }


def test_the_other_spelling_comes_first_as_in_bert4keras():
    config = small_config(dropout_rate=0.3, attention_dropout_rate=0, segment_vocab_size=0)
    arguments = backbone_arguments(config, "roformer")
    expected = {"dropout": 0.3, "attention_dropout": 0, "num_segments": 0}
    assert arguments.items() >= expected.items()


def test_defaults_are_those_of_bert4keras():
    config = small_config()
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size"):
        del config[name]
    arguments = backbone_arguments(config, "roformer_v2")
    defaults = {"dropout": 0, "attention_dropout": 0, "num_segments": 2}
    defaults |= {"norm": "rms_norm", "layer_norm_epsilon": 1e-7}
    assert arguments.items() >= defaults.items()


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({"max_position": 64}, 64),
        ({"max_position": None}, 1024),
        ({"max_position": None, "max_position_embeddings": None}, 512),
    ],
)
def test_a_number_of_positions_that_is_null_is_not_there(settings, positions):
    config = small_config(**{"max_position_embeddings": 1024, **settings})
    assert backbone_arguments(config, "bert")["max_sequence_length"] == positions


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_size": None}, "lacks `hidden_size`"),
        ({"vocab_size": "200"}, "`vocab_size` in .* must be a positive integer. Received: '200'"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` .* Received: 0"),
        ({"num_attention_heads": True}, "`num_attention_heads` .* Received: True"),
        ({"num_attention_heads": 5}, "even multiple of `num_attention_heads`"),
        ({"num_attention_heads": 32}, "even multiple of `num_attention_heads`"),
        ({"attention_head_size": 16}, "`attention_head_size` .* = 8.* attention_head_size=16"),
        ({"attention_key_size": 4}, "`attention_key_size` .* Received: attention_key_size=4"),
        ({"hidden_act": ["gelu", "linear"]}, r"`hidden_act` .* Received: \['gelu', 'linear'\]"),
        ({"hidden_act": "mish"}, "`hidden_act` .* Received: 'mish'"),
        ({"hidden_dropout_prob": 1.5}, "`hidden_dropout_prob` .* Received: 1.5"),
        ({"type_vocab_size": -1}, "`type_vocab_size` .* Received: -1"),
        ({"residual_attention_scores": True}, "`residual_attention_scores`"),
    ],
    ids=str,
)
def test_unsupported_settings_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        backbone_arguments(small_config(**changes), "roformer")


def test_harmless_settings_are_accepted():
    config = small_config(attention_head_size=8, attention_key_size=8, directionality="bidi")
    assert backbone_arguments(config, "roformer")["num_heads"] == 4


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{\n "vocab_size": 200,\n "hidden_size" 32}', "not valid JSON: .* at line 3, column 16"),
        (b"[1, 2]", "must hold a JSON object .* Received: list"),
        (b"", "not valid JSON.* line 1, column 1"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (LFS_POINTER.encode(), "Git LFS pointer"),
    ],
)
def test_damaged_settings(tmp_path, content, message):
    (tmp_path / "bert_config.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"bert_config.json .*{message}"):
        read_json(tmp_path / "bert_config.json", "it holds the sizes of the model")


def test_a_byte_order_mark_does_no_harm(tmp_path):
    (tmp_path / "bert_config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}).encode())
    assert read_json(tmp_path / "bert_config.json", "it holds the sizes of the model") == {"a": 1}


@pytest.mark.parametrize(
    "family, changes",
    [
        ("roformer", {}),
        ("roformer", {"embedding_size": 24, "hidden_act": "gelu_tanh", "type_vocab_size": 0}),
        ("roformer", {"layer_norm_eps": 1e-7}),
        ("roformer_v2", {"hidden_act": "relu", "hidden_dropout_prob": 0.0}),
        ("roformer_v2", {"hidden_act": "relu", "layer_norm_eps": 1e-12}),
    ],
)
def test_back_to_the_original(family, changes):
    config = small_config(**changes)
    backbone = roformer_tf.RoFormerBackbone(**backbone_arguments(config, family))
    assert original_config(backbone) == {**config, "masking": "bidirectional"}


@pytest.mark.parametrize(
    "family, options, message",
    [
        ("roformer", {"max_wavelength": 500}, "`max_wavelength`.*500"),
        ("nezha", {"position_options": {"max_distance": 3}}, "`position_options`.*max_distance"),
        ("roformer", {"position_options": {"learned": True}}, "`position_options`.*learned"),
        ("roformer", {"position_options": {"rotary_dim": 4}}, "`position_options`.*rotary_dim"),
        ("roformer", {"activation": "elu"}, "`activation`.*'gelu'.*'elu'"),
    ],
)
def test_unsupported_models_raise(family, options, message):
    arguments = backbone_arguments(small_config(), family)
    backbone = roformer_tf.RoFormerBackbone(**{**arguments, **options})
    with pytest.raises(ValueError, match=f"{message}.*save_to_preset"):
        original_config(backbone)
