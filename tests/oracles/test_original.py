"""The oracle reproduces the goldens: bert4keras gives the same here as when they were recorded."""

import json

import numpy as np
import pytest

from tests.checkpoint.golden import read_case
from tests.oracles.run_original import small_config

pytestmark = pytest.mark.oracle

# one of each kind; the models' golden tests run all
CASES = [
    "encoder_all_layers",
    "pool_nsp_mlm",
    "unilm_sim",
    "factorised_mlm",
    "padded_masked_mean",
    "odd_masks_lm",
    "position_ids_fractional",
    "v2_unilm_mlm",
    "act_gelu_tanh",
    "keep_and_compound",
    "nezha_encoder",
    "small_embeddings_mlm",
    "no_segments",
]


@pytest.mark.parametrize("name", CASES)
def test_reproduces_golden_case(original, shared_dir, name):
    case, checkpoint, arrays = read_case(shared_dir, name)
    outputs, noise = original.forward_with_noise(
        checkpoint,
        {key: arrays[f"input_{key}"] for key in case["inputs"]},
        model=case["model"],
        application=case["application"],
        head=case.get("head"),
        **case["kwargs"],
    )
    assert len(outputs) == len(case["outputs"])
    for i, (output, here, recorded) in enumerate(
        zip(outputs, noise, case["float32_noise"], strict=True)
    ):
        # Same code, another processor: both are float32 roundings of the same float64 numbers.
        np.testing.assert_allclose(output, arrays[f"output_{i}"], rtol=0, atol=2 * recorded)
        assert 0.4 * recorded < here < 2.5 * recorded


def test_reproduces_golden_gradients(original, shared_dir):
    golden = shared_dir / "golden"
    batches = np.load(golden / "training" / "batches.npz")
    expected = np.load(golden / "training" / "gradients.npz")
    loss, gradients = original.gradients(
        golden / "checkpoints" / "roformer",
        {"token_ids": batches["token_ids"][0], "segment_ids": batches["segment_ids"][0]},
        batches["labels"][0],
    )
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-6)
    assert set(gradients) == set(expected) - {"loss"}
    for name, gradient in gradients.items():
        # float32 rounding of sums over 4 x 17 positions; gradients reach 0.3
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=3e-6, err_msg=name)


def test_random_checkpoint_is_distributed_as_the_golden_ones(original, tmp_path, seed):
    variables = original.make_checkpoint(tmp_path, small_config(hidden_size=64), seed)
    assert {path.name for path in tmp_path.iterdir()} == {
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "bert_model.ckpt.meta",
        "checkpoint",
        "vocab.txt",
    }
    # 12,800 draws of each: the standard deviation is known within 2.5 % (four of its own)
    assert variables["bert/embeddings/word_embeddings"].std() == pytest.approx(0.5, rel=0.025)
    query = variables["bert/encoder/layer_1/attention/self/query/kernel"]
    assert query.std() == pytest.approx(2 / 8, rel=0.05)  # 4,096 draws
    assert variables["cls/seq_relationship/output_weights"].shape == (2, 64)
    assert variables["cls/predictions/output_bias"].shape == (200,)
    assert len((tmp_path / "vocab.txt").read_text().splitlines()) == 200


@pytest.mark.parametrize("level", ["word", "char"])
def test_encode_is_the_original_tokenizer(original, shared_dir, level):
    tokenizer = shared_dir / "golden" / "tokenizer"
    golden = json.loads((tokenizer / "pairs.json").read_text())
    arguments = ("maxlen", "pattern", "truncate_from")
    for call in golden[::10]:
        (result,) = original.encode(
            tokenizer / "vocab.txt",
            [call["first"]],
            [call["second"]],
            word_level=level == "word",
            **{name: call[name] for name in arguments},
        )
        expected = call[level]
        assert result == (expected["error"] if isinstance(expected, dict) else expected)


def test_error_of_the_original_is_reported(original, tmp_path):
    with pytest.raises(RuntimeError, match="bert4keras failed on `forward`(.|\n)*bert_config.json"):
        original.forward(tmp_path, {"token_ids": np.ones((1, 2), "int32")})
