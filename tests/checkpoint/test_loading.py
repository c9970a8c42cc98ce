"""`load_checkpoint`: reports, errors, ignored variables, and selected tokens."""

import contextlib

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import load_checkpoint, save_checkpoint
from roformer_tf.checkpoint.original_config import backbone_arguments
from roformer_tf.checkpoint.vocabulary import edit_rows
from tests.checkpoint.conftest import (
    assert_same_bytes,
    random_folder,
    random_variables,
    read_variables,
    write_original,
)
from tests.layers.harness import assert_equal, numpy, quantized
from tests.oracles.run_original import small_config


def make_backbone(family="roformer", pooler=None, **changes):
    arguments = backbone_arguments(small_config(**changes), family)
    return roformer_tf.RoFormerBackbone(pooler=pooler, **arguments)


def test_a_backbone_ignores_heads(folder):
    report = load_checkpoint(make_backbone(), folder)
    assert report.complete
    ignored = {group: len(names) for group, names in report.ignored.items()}
    assert ignored == {"pooler": 2, "nsp": 2, "mlm": 5}
    assert len(report.loaded) == 36
    assert report.source.endswith("bert_model.ckpt")
    report = load_checkpoint(make_backbone(type_vocab_size=0), folder)
    assert report.ignored["segments"] == ("bert/embeddings/token_type_embeddings",)


def test_a_new_classifier_head_stays(folder):
    classifier = roformer_tf.RoFormerTextClassifier(make_backbone(), num_classes=3)
    head = np.array(numpy(classifier.logits_dense.kernel))
    assert load_checkpoint(classifier, folder).complete
    np.testing.assert_array_equal(numpy(classifier.logits_dense.kernel), head)


def test_optimizer_slots_are_ignored(rng, config, tmp_path):
    variables = random_variables(rng, config, heads=())
    plain = dict(variables)
    slots = "adam_m adam_v Adam Adam_1 AdamWeightDecayOptimizer AdamWeightDecayOptimizer_1".split()
    for name, array in list(plain.items())[:4]:
        variables |= {f"{name}/{slot}": array for slot in slots}
    variables["global_step"] = np.int64(1000)
    variables["beta1_power"] = np.float32(0.9)
    folder = write_original(tmp_path / "trained", variables, config)
    report = load_checkpoint(make_backbone(), folder)
    assert set(report.loaded) == set(plain)
    assert len(report.optimizer_slots) == 6 * 4 + 2


def test_one_error_lists_every_difference(rng, config, tmp_path):
    variables = random_variables(rng, config, heads=())
    del variables["bert/encoder/layer_0/attention/self/query/bias"]
    del variables["bert/embeddings/LayerNorm/gamma"]
    variables["bert/encoder/layer_2/output/dense/bias"] = np.zeros(32, "float32")
    variables["bert/encoder/layer_1/output/dense/kernel"] = np.zeros((64, 16), "float32")
    folder = write_original(tmp_path / "broken", variables, config)
    model = make_backbone()
    before = model.get_weights()
    with pytest.raises(ValueError) as error:
        load_checkpoint(model, folder)
    message = str(error.value)
    assert "2 missing, 1 unexpected, 1 of wrong shape" in message
    for line in (
        "bert/encoder/layer_0/attention/self/query/bias (32,)",
        "bert/embeddings/LayerNorm/gamma (32,)",
        "bert/encoder/layer_2/output/dense/bias",
        "bert/encoder/layer_1/output/dense/kernel: the model has (64, 32), the checkpoint (64, 16)",
        "strict=False",
        "from_preset(folder)",
    ):
        assert line in message
    assert_equal(model.get_weights(), before)

    report = load_checkpoint(model, folder, strict=False)
    assert not report.complete
    assert len(report.missing) == 2
    assert report.unexpected == ("bert/encoder/layer_2/output/dense/bias",)
    assert list(report.wrong_shape) == ["bert/encoder/layer_1/output/dense/kernel"]
    attention = model.encoder_blocks[0].attention
    value = variables["bert/encoder/layer_0/attention/self/value/bias"]
    np.testing.assert_array_equal(numpy(attention.qkv.bias)[64:], value)
    np.testing.assert_array_equal(numpy(attention.qkv.bias)[:32], 0)  # the missing third stays


@pytest.mark.parametrize(
    "heads, model, message",
    [
        ((), "masked_lm", r"5 missing(.|\n)*no masked-LM head: load into `model.backbone`"),
        ((), {"pooler": "tanh"}, r"2 missing(.|\n)*no pooler: .* pooler=None"),
        (
            ("mlm",),
            {"vocab_size": 100},
            "has 100 tokens, the checkpoint 200: .*vocabulary_size=200, or .* keep",
        ),
        (("mlm",), {"num_hidden_layers": 1}, "0 missing, 16 unexpected, 0 of wrong shape"),
    ],
    ids=str,
)
def test_other_heads_and_sizes_raise(rng, tmp_path, heads, model, message):
    folder = random_folder(tmp_path / "a", rng, heads=heads)
    if model == "masked_lm":
        model = roformer_tf.RoFormerMaskedLM(make_backbone())
    else:
        model = make_backbone(**model)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(model, folder)


@pytest.mark.parametrize("strict", [True, False])
def test_v2_into_v1_and_back_raises(folder, v2_folder, strict):
    message = "holds RoFormer v2, but .* is RoFormer v1.*norm='rms_norm'"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(make_backbone(), v2_folder, strict=strict)
    v2 = make_backbone("roformer_v2", hidden_act="relu")
    message = "holds RoFormer v1, but .* is RoFormer v2.*norm='layer_norm'"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(v2, folder, strict=strict)


def test_bert_into_roformer_raises(rng, tmp_path):
    folder = random_folder(tmp_path / "chinese_wobert", rng, "bert")
    message = "Wrong family: .* BERT or WoBERT.* position_scheme='learned'"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(make_backbone(), folder)
    with pytest.raises(ValueError, match="1 unexpected(.|\n)*bert/embeddings/position_embeddings"):
        load_checkpoint(make_backbone(), folder, family="roformer")


@pytest.mark.parametrize(
    "family, name, scheme",
    [("bert", "chinese_wobert", "learned"), ("nezha", "NEZHA-Base", "sinusoidal_relative")],
)
def test_the_baselines_of_the_paper_load_and_save(rng, tmp_path, family, name, scheme):
    config = small_config(max_position_embeddings=40)
    variables = random_variables(rng, config, family)
    folder = write_original(tmp_path / name, variables, config)
    warned = pytest.warns(UserWarning, match="took family='nezha' from the name of the folder")
    with warned if family == "nezha" else contextlib.nullcontext():
        masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(folder)
    backbone = masked_lm.backbone
    assert backbone.position_scheme_name == scheme
    longest = 40 if family == "bert" else 512
    assert (backbone.max_sequence_length, masked_lm.preprocessor.sequence_length) == (longest,) * 2
    save_checkpoint(masked_lm, tmp_path / "again")
    saved = read_variables(tmp_path / "again" / "bert_model.ckpt")
    assert set(saved) == {n for n in variables if "pooler" not in n and "seq_rel" not in n}
    assert_same_bytes(saved, variables)
    again = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "again")
    assert again.backbone.position_scheme_name == scheme


@pytest.mark.parametrize("changes", [{"use_relative_position": True}, {}])
def test_nezha_raises_unless_the_family_is_passed(rng, tmp_path, changes):
    folder = random_folder(tmp_path / ("a" if changes else "NEZHA-Base"), rng, **changes)
    with pytest.raises(ValueError, match="Wrong family: .* NEZHA.* pass family='roformer'"):
        load_checkpoint(make_backbone(), folder)
    assert load_checkpoint(make_backbone(), folder, family="roformer").complete
    with pytest.raises(ValueError, match="`family` must be one of"):
        load_checkpoint(make_backbone(), folder, family="albert")


def test_other_architectures_raise(config, tmp_path):
    variables = {"albert/x": np.zeros(2, "float32"), "global_step": np.int64(1)}
    folder = write_original(tmp_path / "albert", variables, config)
    with pytest.raises(ValueError, match=r"unknown model.*ALBERT.*names begin with albert\."):
        load_checkpoint(make_backbone(), folder)


def test_damaged_data_is_named(folder):
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match="data of the variable .* is damaged"):
        load_checkpoint(make_backbone(), folder)


def test_a_model_that_is_not_a_roformer_raises(folder):
    message = "`model` must be a RoFormerBackbone or a task.* Received: Sequential"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(keras.Sequential(), folder)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_quantized_models_raise(folder):
    backbone = make_backbone()
    quantized(backbone)
    with pytest.raises(ValueError, match="quantized .* Load first, then call `quantize`"):
        load_checkpoint(backbone, folder)


def test_nsp_head_needs_its_classifier(folder):
    classifier, pooler = roformer_tf.RoFormerTextClassifier, make_backbone(pooler="tanh")
    for model in (
        make_backbone(),
        classifier(make_backbone(), num_classes=2),
        classifier(pooler, num_classes=3, pooling="pooler"),
    ):
        with pytest.raises(ValueError, match="`nsp_head=True` needs RoFormerTextClassifier"):
            load_checkpoint(model, folder, nsp_head=True)


def test_keep_and_compound_tokens(folder, variables):
    keep, compound = [3, 2, 199, 17], [[0, 1], ([1, 3], [1, 3]), [2]]
    options = {"preprocessor": None, "keep_tokens": keep, "compound_tokens": compound}
    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, **options)
    assert model.backbone.vocabulary_size == 7
    for ours, name in (
        (model.backbone.token_embedding.embeddings, "bert/embeddings/word_embeddings"),
        (model.head.output_bias, "cls/predictions/output_bias"),
    ):
        rows = variables[name].astype("float64")
        wanted = [rows[3], rows[2], rows[199], rows[17]]
        wanted += [(rows[3] + rows[2]) / 2, (rows[2] + 3 * rows[17]) / 4, rows[199]]
        np.testing.assert_array_equal(numpy(ours), np.float32(wanted))
    message = "has 200 tokens, the checkpoint after keep_tokens and compound_tokens 3"
    with pytest.raises(ValueError, match=message):
        load_checkpoint(make_backbone(), folder, keep_tokens=[1, 2, 3])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"keep_tokens": [0, 5]}, r"`keep_tokens` must hold ids from 0 to 4. Received: \[5\]"),
        ({"keep_tokens": [-1]}, r"Received: \[-1\]"),
        ({"keep_tokens": []}, "non-empty"),
        ({"keep_tokens": [0.5]}, "non-empty lists of token ids"),
        (
            {"keep_tokens": [4, 3], "compound_tokens": [[4]]},
            r"from 0 to 1, counted after `keep_tokens`. Received: \[4\]",
        ),
        ({"compound_tokens": [([1, 2], [1])]}, "weights"),
        ({"compound_tokens": [([1, 2], [1, -1])]}, "do not sum to 0"),
        ({"compound_tokens": [[]]}, "non-empty"),
    ],
    ids=str,
)
def test_bad_ids_raise(options, message):
    with pytest.raises(ValueError, match=message):
        edit_rows(np.ones((5, 2)), **options)


def test_compound_of_a_single_id():
    edited = edit_rows(np.arange(4.0), compound_tokens=[2, (3, 7)])
    np.testing.assert_array_equal(edited, [0, 1, 2, 3, 2, 3])


def test_saving_raises_if_the_format_cannot_hold_it(tmp_path):
    classifier = roformer_tf.RoFormerTextClassifier(make_backbone(), num_classes=2)
    with pytest.raises(ValueError, match="cannot hold the head of .*model.backbone"):
        save_checkpoint(classifier, tmp_path / "saved")
    with pytest.raises(ValueError, match=r"`vocabulary` has 2 tokens, fewer than the 200"):
        save_checkpoint(make_backbone(), tmp_path / "saved", vocabulary=["[PAD]", "[UNK]"])
    message = "must not contradict .*'hidden_size': 32.* Received: {'hidden_size': 64}"
    with pytest.raises(ValueError, match=message):
        save_checkpoint(make_backbone(), tmp_path / "saved", settings={"hidden_size": 64})
    assert not (tmp_path / "saved").exists()


def test_more_settings_are_saved(tmp_path):
    settings = {"max_position_embeddings": 1536, "directionality": "bidi"}
    saved = save_checkpoint(make_backbone(), tmp_path / "saved", settings=settings)
    assert '"max_position_embeddings": 1536' in (saved / "bert_config.json").read_text()


def test_saving_over_a_checkpoint_keeps_it_until_the_end(folder, variables, monkeypatch):
    model = roformer_tf.RoFormerBackbone.from_preset(folder)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("roformer_tf.checkpoint.saving.dumps", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(model, folder)
    assert set(read_variables(folder / "bert_model.ckpt")) == set(variables)
    monkeypatch.undo()
    save_checkpoint(model, folder)
    assert set(read_variables(folder / "bert_model.ckpt")) < set(variables)
    assert (folder / "vocab.txt").exists()
