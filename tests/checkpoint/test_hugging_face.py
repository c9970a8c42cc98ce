"""Converts to Hugging Face's layout and back, and compares with the PyTorch model."""

import contextlib
import json

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import convert, inspect_checkpoint, load_checkpoint
from tests.checkpoint.conftest import (
    assert_same_bytes,
    random_folder,
    read_variables,
    write_original,
)
from tests.checkpoint.other_files import take_tensors, write_shards
from tests.layers.harness import assert_equal, numpy

safetensors = pytest.importorskip("safetensors.numpy")


def random_inputs(rng):
    ids = rng.integers(1, 200, size=(3, 13)).astype("int32")
    lengths = np.array([13, 9, 4])
    mask = (np.arange(13) < lengths[:, None]).astype("int32")
    return {
        "token_ids": ids,
        "segment_ids": rng.integers(0, 2, size=ids.shape).astype("int32"),
        "padding_mask": mask,
    }


def torch_outputs(folder, inputs, cls_name):
    """Runs the PyTorch model in a folder and checks that `from_pretrained` loads every weight.

    Returns:
        Outputs in float64, and the noise of float32: the largest difference from them, in float32
        and with weights that differ by at most one last digit. One run alone may be exact by luck.
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
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            for name, weight in model.state_dict().items():
                if weight.is_floating_point():
                    error = 2 * torch.rand(weight.shape, generator=generator) - 1
                    weight.copy_(weights[name] * (1 + 2.0**-23 * error))
            outputs.append(model(**tensors)[0].numpy())
    noise = max(float(np.abs(output - exact).max()) for output in outputs)
    return exact, noise


@pytest.mark.parametrize(
    "changes",
    [{}, {"embedding_size": 24}, {"layer_norm_eps": 1e-5}]
    + [{"hidden_act": name} for name in ("gelu_tanh", "relu")],
    ids=str,
)
@pytest.mark.slow
def test_pytorch_gives_our_logits(rng, tmp_path, changes):
    folder = random_folder(tmp_path / "original", rng, heads=("mlm",), **changes)
    # Hugging Face has one epsilon for all norms
    has_two = "layer_norm_eps" in changes
    with pytest.warns(match="1e-12 in the head and") if has_two else contextlib.nullcontext():
        convert(folder, tmp_path / "hf")
    inputs = random_inputs(rng)
    model = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "hf", preprocessor=None)
    assert model.head_epsilon == changes.get("layer_norm_eps", 1e-12)
    exact, noise = torch_outputs(tmp_path / "hf", inputs, "RoFormerForMaskedLM")
    logits = numpy(model(inputs))
    # Both float32 programs are some noise away from the exact numbers: of 200 models the worst was
    # 1.7 times as far as the noise, and 5e-5 of the largest logit (a row of little variance, which
    # a norm with an epsilon of 1e-12 magnifies), where the median is 1e-6.
    assert np.abs(logits - exact).max() <= 4 * noise
    assert np.abs(logits - exact).max() <= 2e-4 * np.abs(exact).max()


def test_pytorch_gives_our_hidden_states(rng, tmp_path):
    folder = random_folder(tmp_path / "original", rng, heads=())
    report = convert(folder, tmp_path / "hf")
    assert not report.dropped
    inputs = random_inputs(rng)
    exact, noise = torch_outputs(tmp_path / "hf", inputs, "RoFormerModel")
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
        layer_norm_eps=1e-5,
    )
    getattr(transformers, cls_name)(config).save_pretrained(tmp_path / "hf")
    inputs = random_inputs(rng)
    exact, noise = torch_outputs(tmp_path / "hf", inputs, cls_name)
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


def test_settings_of_the_tokenizer_that_are_lost_are_named(rng, tmp_path):
    convert(random_folder(tmp_path / "original", rng), tmp_path / "hf")
    settings = {"do_lower_case": False, "mask_token": "[MASK]", "cls_token": "[SEP]"}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="new folder: lowercase=False, start_token='\\[SEP\\]'$"):
        convert(tmp_path / "hf", tmp_path / "back")


def test_the_tokenizer_is_kept_between_folders_of_hugging_face(rng, tmp_path):
    convert(random_folder(tmp_path / "original", rng), tmp_path / "hf")
    settings = {"do_lower_case": False, "cls_token": "[SEP]"}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(tmp_path / "hf", tmp_path / "again", to="huggingface")
    configs = (
        roformer_tf.RoFormerTokenizer.from_preset(tmp_path / name, name="tokenizer").get_config()
        for name in ("hf", "again")
    )
    assert next(configs) == next(configs)
    # without settings they are gone again
    convert(tmp_path / "original", tmp_path / "again", overwrite=True)
    assert roformer_tf.RoFormerTokenizer.from_preset(tmp_path / "again").lowercase


def test_the_tokenizer_of_transformers(rng, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("rjieba")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气", "天气", "Paris", "paris"]
    folder = random_folder(tmp_path / "original", rng, tokens=tokens, vocab_size=13)
    convert(folder, tmp_path / "hf")
    theirs = transformers.RoFormerTokenizer.from_pretrained(tmp_path / "hf", do_lower_case=False)
    theirs.add_tokens("<city>")
    theirs.add_tokens("<e1>", special_tokens=True)
    theirs.save_pretrained(tmp_path / "hf")
    for file in ("vocab.txt", "SHA256SUMS"):  # transformers 5 saves no `vocab.txt`
        (tmp_path / "hf" / file).unlink()
    text = "今天气 Paris<city>天气paris<e1>"
    model = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "hf")
    assert (
        model.preprocessor.tokenizer.encode(text)[0].numpy().tolist() == theirs(text)["input_ids"]
    )
    with pytest.warns(UserWarning, match="lowercase=False, added_tokens=\\['<city>', '<e1>'\\]$"):
        convert(tmp_path / "hf", tmp_path / "back")
    assert (tmp_path / "back" / "vocab.txt").read_text("utf-8").split() == [
        *tokens,
        "<city>",
        "<e1>",
    ]


@pytest.mark.parametrize("heads", [(), ("mlm",), ("mlm", "pooler")], ids=str)
@pytest.mark.parametrize("embedding_size", [32, 24])
def test_there_and_back_is_bit_for_bit(rng, tmp_path, heads, embedding_size):
    folder = random_folder(tmp_path / "original", rng, heads=heads, embedding_size=embedding_size)
    convert(folder, tmp_path / "hf")
    report = convert(tmp_path / "hf", tmp_path / "back")
    assert report.layout == "original"
    before = read_variables(folder / "bert_model.ckpt")
    after = read_variables(tmp_path / "back" / "bert_model.ckpt")
    assert set(before) == set(after)
    assert_same_bytes(before, after)
    assert (tmp_path / "back" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    folders = (folder, tmp_path / "back")
    first, second = (json.loads((f / "bert_config.json").read_text()) for f in folders)
    assert {k: second.get(k, 32) for k in first} == first


@pytest.fixture
def hf(folder, tmp_path):
    """A Hugging Face folder, converted from the original one. Its next-sentence head is dropped."""
    report = convert(folder, tmp_path / "hf")
    head = "cls/seq_relationship/output"
    assert report.dropped == (f"{head}_bias", f"{head}_weights")
    (tmp_path / "hf" / "SHA256SUMS").unlink()  # the tests change the files
    return tmp_path / "hf"


def test_load_checkpoint_reads_pytorch_model_bin(folder, hf):
    torch = pytest.importorskip("torch")
    tensors = take_tensors(hf)
    embeddings = tensors["roformer.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = embeddings
    state = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    torch.save(state, hf / "pytorch_model.bin")
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None, load_weights=False)
    assert load_checkpoint(model, hf).complete
    wanted = roformer_tf.RoFormerMaskedLM.from_preset(folder, preprocessor=None)
    assert_equal(model.weights, wanted.weights)


def test_shards_are_read(folder, hf, tmp_path):
    write_shards(hf, take_tensors(hf))
    report = convert(hf, tmp_path / "back")
    after = read_variables(tmp_path / "back" / "bert_model.ckpt")
    assert set(after) == set(report.converted)
    assert_same_bytes(after, read_variables(folder / "bert_model.ckpt"))


@pytest.mark.parametrize("head", ["classifier.dense", "classifier", "qa_outputs"])
def test_the_trained_head_of_another_task_is_left_out(folder, hf, head):
    file = hf / "model.safetensors"
    tensors = {f"{head}.weight": np.ones((2, 32), "float32"), f"{head}.bias": np.ones(2, "float32")}
    for name, tensor in safetensors.load_file(file).items():
        if name.startswith("roformer."):
            tensors[name] = tensor
    safetensors.save_file(tensors, file)
    with pytest.warns(UserWarning, match=f"Left out: {head}.bias, {head}.weight$"):
        backbone = roformer_tf.RoFormerBackbone.from_preset(hf)
    wanted = roformer_tf.RoFormerBackbone.from_preset(folder)
    assert_equal(backbone.get_weights(), wanted.get_weights())


def test_untied_output_raises(hf):
    file = hf / "model.safetensors"
    tensors = safetensors.load_file(file)
    embeddings = tensors["roformer.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = embeddings + 1
    safetensors.save_file(tensors, file)
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        inspect_checkpoint(hf)


def test_other_families_raise(v2_folder, tmp_path):
    with pytest.raises(ValueError, match="RoFormer v1 only.*RoFormer v2.*no bias"):
        convert(v2_folder, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_damaged_files_raise(hf, tmp_path):
    file = hf / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or cut off"):
        inspect_checkpoint(hf)
    (hf / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="model_type='roformer'. Received: 'gpt2'"):
        convert(hf, tmp_path / "back")


def test_an_incomplete_checkpoint_is_not_converted(variables, config, tmp_path):
    del variables["bert/encoder/layer_1/output/dense/bias"]
    variables["bert/extra"] = np.zeros(3, "float32")
    folder = write_original(tmp_path / "original", variables, config)
    message = "missing: bert/encoder/layer_1/output/dense/bias.*\n.*unknown: bert/extra"
    with pytest.raises(ValueError, match=message):
        convert(folder, tmp_path / "hf")
    with pytest.raises(ValueError, match="`to` must be one of"):
        convert(folder, tmp_path / "hf", to="onnx")
