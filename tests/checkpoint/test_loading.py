"""`load_checkpoint`: errors, what it ignores and reports, and editing the vocabulary."""

import contextlib

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import load_checkpoint, save_checkpoint
from roformer_tf.checkpoint.original_config import backbone_arguments
from roformer_tf.checkpoint.vocabulary import edit_rows
from tests.checkpoint.conftest import random_variables, read_variables, write_original
from tests.checkpoint.golden import numpy
from tests.layers.harness import quantized
from tests.oracles.run_original import small_config


def make_backbone(family="roformer", arguments=None, **changes):
    config = small_config(**changes)
    return roformer_tf.RoFormerBackbone(
        **{**backbone_arguments(config, family), **(arguments or {})}
    )


def weights_of(model):
    return [np.array(numpy(w)) for w in model.weights]


def test_a_backbone_ignores_heads(folder):
    report = load_checkpoint(make_backbone(), folder)
    assert report.complete
    assert {group: len(names) for group, names in report.ignored.items()} == {
        "pooler": 2,
        "nsp": 2,
        "mlm": 5,
    }
    assert len(report.loaded) == 36
    assert report.source.endswith("bert_model.ckpt")


def test_a_model_without_segments_ignores_their_embedding(folder):
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


def test_everything_wrong_is_named_in_one_error(rng, config, tmp_path):
    variables = random_variables(rng, config, heads=())
    del variables["bert/encoder/layer_0/attention/self/query/bias"]
    del variables["bert/embeddings/LayerNorm/gamma"]
    variables["bert/encoder/layer_2/output/dense/bias"] = np.zeros(32, "float32")
    variables["bert/encoder/layer_1/output/dense/kernel"] = np.zeros((64, 16), "float32")
    folder = write_original(tmp_path / "broken", variables, config)
    model = make_backbone()
    before = weights_of(model)
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
    for old, new in zip(before, weights_of(model), strict=True):
        np.testing.assert_array_equal(old, new)

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
        ((), {"arguments": {"pooler": "tanh"}}, r"2 missing(.|\n)*no pooler: .* pooler=None"),
        (
            ("mlm",),
            {"vocab_size": 100},
            "has 100 tokens, the checkpoint 200: .*vocabulary_size=200, or .* keep",
        ),
        (("mlm",), {"num_hidden_layers": 1}, "0 missing, 16 unexpected, 0 of wrong shape"),
    ],
    ids=str,
)
def test_what_does_not_fit_raises(rng, config, tmp_path, heads, model, message):
    folder = write_original(tmp_path / "a", random_variables(rng, config, heads=heads), config)
    if model == "masked_lm":
        model = roformer_tf.RoFormerMaskedLM(make_backbone())
    else:
        model = make_backbone(**model)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(model, folder)


@pytest.mark.parametrize("strict", [True, False])
def test_v2_into_v1_and_back_raises(folder, v2_folder, strict):
    with pytest.raises(
        ValueError, match="holds RoFormer v2, but .* is RoFormer v1.*norm='rms_norm'"
    ):
        load_checkpoint(make_backbone(), v2_folder, strict=strict)
    v2 = make_backbone("roformer_v2", hidden_act="relu")
    with pytest.raises(
        ValueError, match="holds RoFormer v1, but .* is RoFormer v2.*norm='layer_norm'"
    ):
        load_checkpoint(v2, folder, strict=strict)


def test_bert_into_roformer_raises(rng, config, tmp_path):
    variables = random_variables(rng, config, "bert")
    folder = write_original(tmp_path / "chinese_wobert", variables, config)
    with pytest.raises(
        ValueError, match="Wrong family: .* BERT or WoBERT.* position_scheme='learned'"
    ):
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
    for variable, array in saved.items():
        assert array.tobytes() == variables[variable].tobytes(), variable
    again = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "again")
    assert again.backbone.position_scheme_name == scheme


@pytest.mark.parametrize(
    "changes, name", [({"use_relative_position": True}, "a"), ({}, "NEZHA-Base")]
)
def test_nezha_is_refused_unless_the_family_is_given(rng, tmp_path, changes, name):
    config = small_config(**changes)
    folder = write_original(tmp_path / name, random_variables(rng, config), config)
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
    with pytest.raises(
        ValueError, match="`model` must be a RoFormerBackbone or a task.* Received: Sequential"
    ):
        load_checkpoint(keras.Sequential(), folder)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_quantized_models_raise(folder):
    backbone = make_backbone()
    quantized(backbone)
    with pytest.raises(ValueError, match="quantized .* Load first, then call `quantize`"):
        load_checkpoint(backbone, folder)


def test_nsp_head_needs_its_classifier(folder):
    for model in (
        make_backbone(),
        roformer_tf.RoFormerTextClassifier(make_backbone(), num_classes=2),
        roformer_tf.RoFormerTextClassifier(
            make_backbone(arguments={"pooler": "tanh"}), num_classes=3, pooling="pooler"
        ),
    ):
        with pytest.raises(ValueError, match="`nsp_head=True` needs RoFormerTextClassifier"):
            load_checkpoint(model, folder, nsp_head=True)


def test_keep_and_compound_tokens(folder, variables):
    keep, compound = [3, 2, 199, 17], [[0, 1], ([1, 3], [1, 3]), [2]]
    model = roformer_tf.RoFormerMaskedLM.from_preset(
        folder,
        preprocessor=None,
        keep_tokens=keep,
        compound_tokens=compound,
    )
    assert model.backbone.vocabulary_size == 7
    for ours, name in (
        (model.backbone.token_embedding.embeddings, "bert/embeddings/word_embeddings"),
        (model.head.output_bias, "cls/predictions/output_bias"),
    ):
        rows = variables[name].astype("float64")
        wanted = [rows[3], rows[2], rows[199], rows[17]]
        wanted += [(rows[3] + rows[2]) / 2, (rows[2] + 3 * rows[17]) / 4, rows[199]]
        np.testing.assert_array_equal(numpy(ours), np.float32(wanted))


def test_the_size_after_surgery_must_be_the_models(folder):
    with pytest.raises(
        ValueError, match="has 200 tokens, the checkpoint after keep_tokens and compound_tokens 3"
    ):
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
def test_bad_surgery_raises(options, message):
    with pytest.raises(ValueError, match=message):
        edit_rows(np.ones((5, 2)), **options)


def test_single_ids_may_be_given():
    np.testing.assert_array_equal(
        edit_rows(np.arange(4.0), compound_tokens=[2, (3, 7)]), [0, 1, 2, 3, 2, 3]
    )


def test_saving_raises_if_the_format_cannot_hold_it(folder, tmp_path):
    classifier = roformer_tf.RoFormerTextClassifier(make_backbone(), num_classes=2)
    with pytest.raises(ValueError, match="cannot hold the classifier's head.*model.backbone"):
        save_checkpoint(classifier, tmp_path / "saved")
    with pytest.raises(ValueError, match=r"`vocabulary` has 2 tokens, fewer than the 200"):
        save_checkpoint(make_backbone(), tmp_path / "saved", vocabulary=["[PAD]", "[UNK]"])
    with pytest.raises(
        ValueError, match=r"must not contradict .*'hidden_size': 32.* Received: {'hidden_size': 64}"
    ):
        save_checkpoint(make_backbone(), tmp_path / "saved", settings={"hidden_size": 64})
    assert not (tmp_path / "saved").exists()


def test_further_settings_are_saved(tmp_path):
    saved = save_checkpoint(
        make_backbone(),
        tmp_path / "saved",
        settings={"max_position_embeddings": 1536, "directionality": "bidi"},
    )
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
