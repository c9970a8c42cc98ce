"""Loading and saving a checkpoint gives the same bytes, and bert4keras reads saved models."""

import json

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import load_checkpoint, save_checkpoint
from tests.checkpoint.conftest import (
    assert_same_bytes,
    random_folder,
    random_variables,
    read_variables,
    write_original,
    write_with_saver,
)
from tests.checkpoint.golden import model_inputs
from tests.layers.harness import assert_equal, numpy
from tests.oracles.run_original import small_config


def masked_lm(folder, **kwargs):
    kwargs = {"preprocessor": None, **kwargs}
    return roformer_tf.RoFormerMaskedLM.from_preset(folder, **kwargs)


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 24}, {"num_attention_heads": 2}])
@pytest.mark.parametrize("family", ["roformer", "roformer_v2"])
def test_every_variable_comes_back_bit_for_bit(rng, tmp_path, family, changes):
    folder = random_folder(tmp_path / "original", rng, family, ("pooler", "mlm"), **changes)
    variables = read_variables(folder / "bert_model.ckpt")
    model = roformer_tf.RoFormerBackbone.from_preset(folder)
    if family == "roformer" or "embedding_size" not in changes:
        # a factorised v2 has a projection in its head that no original checkpoint holds
        model = masked_lm(folder, backbone=model)
    saved = read_variables(save_checkpoint(model, tmp_path / "saved"))
    assert set(saved) == set(variables)
    assert_same_bytes(variables, saved)


def test_factorised_v2_head_is_saved_and_loaded(rng, tmp_path):
    changes = {"hidden_act": "relu", "embedding_size": 24}
    model = masked_lm(random_folder(tmp_path, rng, "roformer_v2", **changes), strict=False)
    again = masked_lm(save_checkpoint(model, tmp_path / "saved"))
    assert_equal(again.head.get_weights(), model.head.get_weights())


def test_next_sentence_head_comes_back(folder, variables, tmp_path):
    options = {"num_classes": 2, "pooling": "pooler", "nsp_head": True, "preprocessor": None}
    classifier = roformer_tf.RoFormerTextClassifier.from_preset(folder, **options)
    saved = read_variables(save_checkpoint(classifier, tmp_path / "saved", nsp_head=True))
    assert set(saved) == {n for n in variables if not n.startswith("cls/predictions")}
    assert_same_bytes(saved, variables)


def test_files_are_those_of_tf1_saver(rng, config, tmp_path):
    variables = random_variables(rng, config, heads=("mlm",))
    folder = write_with_saver(tmp_path / "original", variables)
    write_original(tmp_path / "read", variables, config)
    saved = save_checkpoint(masked_lm(tmp_path / "read"), tmp_path / "saved")
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        assert (saved / name).read_bytes() == (folder / name).read_bytes()
    assert tf.train.latest_checkpoint(str(saved)) == str(saved / "bert_model.ckpt")


@pytest.mark.parametrize("name", ["roformer", "roformer_factorised", "roformer_v2"])
def test_golden_checkpoints_come_back(name, shared_dir, tmp_path):
    folder = shared_dir / "golden" / "checkpoints" / name
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder)
    model = masked_lm(folder, backbone=backbone)
    saved = read_variables(save_checkpoint(model, tmp_path / "saved"))
    wanted = read_variables(folder / "bert_model.ckpt")
    assert set(saved) == {n for n in wanted if "seq_relationship" not in n}
    assert_same_bytes(saved, wanted)


def test_rotary_features_are_really_permuted(folder, variables):
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder)
    kernel = numpy(backbone.encoder_blocks[1].attention.qkv.kernel)
    key = variables["bert/encoder/layer_1/attention/self/key/kernel"]
    # head 2 of 4, 8 features each: even features first
    np.testing.assert_array_equal(kernel[:, 32 + 16 : 32 + 20], key[:, 16:24:2])
    np.testing.assert_array_equal(kernel[:, 32 + 20 : 32 + 24], key[:, 17:24:2])
    value = variables["bert/encoder/layer_1/attention/self/value/kernel"]
    np.testing.assert_array_equal(kernel[:, 64:], value)


@pytest.mark.oracle
@pytest.mark.parametrize("model", ["roformer", "roformer_v2"])
def test_bert4keras_loads_what_we_save(model, original, rng, tmp_path):
    config = small_config(hidden_act="relu" if model == "roformer_v2" else "gelu")
    seed = int(rng.integers(2**31))
    variables = original.make_checkpoint(tmp_path / "theirs", config, seed=seed, model=model)
    epsilon = {"layer_norm_epsilon": 1e-7}
    ours = masked_lm(tmp_path / "theirs", **epsilon)
    inputs = {
        "token_ids": rng.integers(1, 200, size=(3, 17)),
        "segment_ids": np.sort(rng.integers(0, 2, size=(3, 17))),
    }
    kwargs = {"model": model, "with_mlm": "linear"}
    (expected,), (noise,) = original.forward_with_noise(tmp_path / "theirs", inputs, **kwargs)
    logits = numpy(ours({**inputs, "padding_mask": np.ones((3, 17), "int32")}))
    assert np.abs(logits - expected).max() <= 4 * noise

    saved = save_checkpoint(ours, tmp_path / "ours", vocabulary=tmp_path / "theirs" / "vocab.txt")
    names = original.variables(saved)
    assert_same_bytes(names, variables)
    # same weights, same program: the same bits
    np.testing.assert_array_equal(original.forward(saved, inputs, **kwargs)[0], expected)


def test_a_second_model_computes_the_same(folder, tmp_path, rng):
    first = masked_lm(folder)
    second = masked_lm(save_checkpoint(first, tmp_path / "saved"))
    inputs = model_inputs({"input_token_ids": rng.integers(1, 200, size=(2, 9))})
    np.testing.assert_array_equal(numpy(first(inputs)), numpy(second(inputs)))


def test_epsilons_come_back(folder, tmp_path):
    model = masked_lm(folder, layer_norm_epsilon=0.05, head_epsilon=0.03)
    again = masked_lm(save_checkpoint(model, tmp_path / "saved"))
    assert (again.backbone.layer_norm_epsilon, again.head_epsilon) == (0.05, 0.03)
    settings = json.loads((tmp_path / "saved" / "bert_config.json").read_text())
    assert settings["head_epsilon"] == 0.03
    assert masked_lm(folder).head_epsilon == 1e-12  # of the original, which has no entry for it


def test_reduced_precision_is_saved_in_float32(folder, tmp_path):
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder, dtype="bfloat16")
    saved = read_variables(save_checkpoint(backbone, tmp_path / "saved"))
    assert {array.dtype for array in saved.values()} == {np.dtype("float32")}
    mixed = roformer_tf.RoFormerBackbone.from_preset(folder, dtype="mixed_bfloat16")
    assert_same_bytes(
        read_variables(save_checkpoint(mixed, tmp_path / "mixed")),
        read_variables(folder / "bert_model.ckpt"),
    )


def test_lora_is_merged_into_what_is_saved(folder, tmp_path, rng):
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder)
    backbone.enable_lora(4)
    layer = backbone.encoder_blocks[0].attention.qkv
    layer.lora_kernel_b.assign(rng.normal(size=layer.lora_kernel_b.shape))
    saved = roformer_tf.RoFormerBackbone.from_preset(save_checkpoint(backbone, tmp_path / "saved"))
    inputs = model_inputs({"input_token_ids": rng.integers(1, 200, size=(2, 9))})
    np.testing.assert_allclose(
        numpy(saved(inputs)["sequence_output"]),
        numpy(backbone(inputs)["sequence_output"]),
        atol=1e-5,  # the merged product is rounded once more
    )
    with pytest.raises(ValueError, match="LoRA enabled"):
        load_checkpoint(backbone, folder)
