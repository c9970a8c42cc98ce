"""Hugging Face's layout: there and back, and the PyTorch model that reads it."""

import json

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import convert, inspect_checkpoint, load_checkpoint
from tests.checkpoint.conftest import (
    assert_same_bytes,
    random_variables,
    read_variables,
    write_original,
)
from tests.checkpoint.golden import numpy
from tests.oracles.run_original import small_config

pytest.importorskip("safetensors")


def make_folder(path, rng, heads=("mlm",), **changes):
    config = small_config(**changes)
    return write_original(path, random_variables(rng, config, heads=heads), config)


def random_inputs(rng, mask=True):
    ids = rng.integers(1, 200, size=(3, 13)).astype("int32")
    lengths = np.array([13, 9, 4])
    mask = (np.arange(13) < lengths[:, None]).astype("int32")
    return {
        "token_ids": ids,
        "segment_ids": rng.integers(0, 2, size=ids.shape).astype("int32"),
        "padding_mask": mask,
    }


def torch_outputs(folder, inputs, cls_name):
    """Outputs of the PyTorch model that `from_pretrained` makes of a folder, with nothing missing or left over.

    Returns:
        Outputs in float32, those in float64, and the noise of float32: the most that the former are away, or the latter
        with weights that are a rounding off. A single program may be lucky where a model is sensitive.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, cls_name)
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert not info["unexpected_keys"]
    model = model.eval()
    tensors = {
        "input_ids": torch.tensor(inputs["token_ids"]).long(),
        "token_type_ids": torch.tensor(inputs["segment_ids"]).long(),
        "attention_mask": torch.tensor(inputs["padding_mask"]).long(),
    }
    with torch.no_grad():
        outputs = [model(**tensors)[0].numpy()]
        exact = model.double()(**tensors)[0].numpy()
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            for name, weight in model.state_dict().items():
                if weight.is_floating_point():
                    error = 2 * torch.rand(weight.shape, generator=generator) - 1
                    weight.copy_(weights[name] * (1 + 2.0**-24 * error))
            outputs.append(model(**tensors)[0].numpy())
    noise = max(float(np.abs(output - exact).max()) for output in outputs)
    return outputs[0], exact, noise


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 24},
        {"hidden_act": "gelu_tanh"},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-5},
    ],
    ids=str,
)
@pytest.mark.slow
def test_pytorch_gives_our_logits(rng, tmp_path, changes):
    folder = make_folder(tmp_path / "original", rng, **changes)
    convert(folder, tmp_path / "hf")
    inputs = random_inputs(rng)
    # Hugging Face has one epsilon for all norms
    model = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "hf", preprocessor=None)
    assert model.head_epsilon == changes.get("layer_norm_eps", 1e-12)
    _, exact, noise = torch_outputs(tmp_path / "hf", inputs, "RoFormerForMaskedLM")
    logits = numpy(model(inputs))
    # both float32 programs are some noise away from the exact numbers
    assert np.abs(logits - exact).max() <= 4 * noise
    assert np.abs(logits - exact).max() <= 1e-5 * np.abs(exact).max()


def test_pytorch_gives_our_hidden_states(rng, tmp_path):
    folder = make_folder(tmp_path / "original", rng, heads=())
    report = convert(folder, tmp_path / "hf")
    assert not report.dropped
    inputs = random_inputs(rng)
    _, exact, noise = torch_outputs(tmp_path / "hf", inputs, "RoFormerModel")
    hidden = numpy(roformer_tf.RoFormerBackbone.from_preset(folder)(inputs))
    assert np.abs(hidden - exact).max() <= 4 * noise


@pytest.mark.parametrize(
    "cls_name, embedding_size, rotary_value",
    [
        ("RoFormerForMaskedLM", None, False),
        ("RoFormerForMaskedLM", 24, True),
        ("RoFormerForCausalLM", None, True),
        ("RoFormerModel", None, True),
        ("RoFormerModel", 24, False),
    ],
)
def test_we_read_what_pytorch_saves(rng, tmp_path, cls_name, embedding_size, rotary_value):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(int(rng.integers(2**31)))
    config = transformers.RoFormerConfig(
        vocab_size=200,
        hidden_size=32,
        embedding_size=embedding_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
        rotary_value=rotary_value,
        is_decoder=cls_name == "RoFormerForCausalLM",
    )
    getattr(transformers, cls_name)(config).save_pretrained(tmp_path / "hf")
    inputs = random_inputs(rng)
    _, exact, noise = torch_outputs(tmp_path / "hf", inputs, cls_name)
    ours = {
        "RoFormerModel": roformer_tf.RoFormerBackbone,
        "RoFormerForMaskedLM": roformer_tf.RoFormerMaskedLM,
        "RoFormerForCausalLM": roformer_tf.RoFormerCausalLM,
    }
    options = {} if cls_name == "RoFormerModel" else {"preprocessor": None}
    model = ours[cls_name].from_preset(str(tmp_path / "hf"), **options)
    difference = np.abs(numpy(model(inputs)) - exact)
    assert difference.max() <= 4 * noise
    if rotary_value:
        # values stay rotated there: the average is not rotated back
        backbone = getattr(model, "backbone", model)
        assert backbone.position_options == {"on_values": "absolute"}
        with pytest.raises(ValueError, match="has no rotated values.*rotary_value=True"):
            convert(tmp_path / "hf", tmp_path / "original")
        return
    convert(tmp_path / "hf", tmp_path / "original")
    again = type(model).from_preset(tmp_path / "original", **options)
    np.testing.assert_array_equal(numpy(again(inputs)), numpy(model(inputs)))


@pytest.mark.parametrize("heads", [(), ("mlm",), ("mlm", "pooler")], ids=str)
@pytest.mark.parametrize("embedding_size", [32, 24])
def test_there_and_back_is_bit_for_bit(rng, tmp_path, heads, embedding_size):
    folder = make_folder(tmp_path / "original", rng, heads=heads, embedding_size=embedding_size)
    convert(folder, tmp_path / "hf")
    report = convert(tmp_path / "hf", tmp_path / "back")
    assert report.layout == "original"
    before = read_variables(folder / "bert_model.ckpt")
    after = read_variables(tmp_path / "back" / "bert_model.ckpt")
    assert set(before) == set(after)
    assert_same_bytes(before, after)
    assert (tmp_path / "back" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    first, second = (
        json.loads((f / "bert_config.json").read_text()) for f in (folder, tmp_path / "back")
    )
    assert {k: second.get(k, 32) for k in first} == first


def test_what_has_no_place_there_is_named(folder, tmp_path):
    report = convert(folder, tmp_path / "hf")
    assert report.dropped == (
        "cls/seq_relationship/output_bias",
        "cls/seq_relationship/output_weights",
    )


def test_load_checkpoint_reads_pytorch_model_bin(folder, tmp_path, rng):
    torch = pytest.importorskip("torch")
    numpy_files = pytest.importorskip("safetensors.numpy")
    convert(folder, tmp_path / "hf")
    tensors = numpy_files.load_file(tmp_path / "hf" / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors[
        "roformer.embeddings.word_embeddings.weight"
    ]
    torch.save(
        {n: torch.from_numpy(a.copy()) for n, a in tensors.items()},
        tmp_path / "hf" / "pytorch_model.bin",
    )
    (tmp_path / "hf" / "model.safetensors").unlink()
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None, load_weights=False)
    assert load_checkpoint(model, tmp_path / "hf").complete
    wanted = roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None)
    for ours, theirs in zip(model.weights, wanted.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def test_shards_are_read(folder, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    convert(folder, tmp_path / "hf")
    tensors = numpy_files.load_file(tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in parts.items():
        numpy_files.save_file({n: tensors[n] for n in part}, tmp_path / "hf" / file)
    index = {"weight_map": {n: file for file, part in parts.items() for n in part}}
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    report = convert(tmp_path / "hf", tmp_path / "back")
    after = read_variables(tmp_path / "back" / "bert_model.ckpt")
    assert set(after) == set(report.converted)
    assert_same_bytes(after, read_variables(folder / "bert_model.ckpt"))


def test_untied_output_raises(folder, tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    convert(folder, tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    tensors = numpy_files.load_file(file)
    tensors["cls.predictions.decoder.weight"] = (
        tensors["roformer.embeddings.word_embeddings.weight"] + 1
    )
    numpy_files.save_file(tensors, file)
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        inspect_checkpoint(tmp_path / "hf")


def test_other_families_raise(v2_folder, tmp_path):
    with pytest.raises(ValueError, match="RoFormer v1 only.*RoFormer v2.*no bias"):
        convert(v2_folder, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_other_models_raise(folder, tmp_path):
    convert(folder, tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="model_type='roformer'. Received: 'gpt2'"):
        convert(tmp_path / "hf", tmp_path / "back")


def test_cut_off_weights_raise(folder, tmp_path):
    convert(folder, tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or cut off"):
        inspect_checkpoint(tmp_path / "hf")


def test_an_incomplete_checkpoint_is_not_converted(rng, config, tmp_path):
    variables = random_variables(rng, config)
    del variables["bert/encoder/layer_1/output/dense/bias"]
    variables["bert/extra"] = np.zeros(3, "float32")
    folder = write_original(tmp_path / "original", variables, config)
    with pytest.raises(
        ValueError, match="missing: bert/encoder/layer_1/output/dense/bias.*\n.*unknown: bert/extra"
    ):
        convert(folder, tmp_path / "hf")
    with pytest.raises(ValueError, match="`to` must be one of"):
        convert(folder, tmp_path / "hf", to="onnx")
