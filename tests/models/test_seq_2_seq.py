"""The translation model: logits, masks, cache and generation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.models import (
    RoFormerSeq2SeqBackbone,
    RoFormerSeq2SeqLM,
    RoFormerSeq2SeqLMPreprocessor,
    translate,
)
from roformer_tf.samplers import BeamSearchSampler
from roformer_tf.text import RoFormerSentencePieceTokenizer
from tests.layers.harness import assert_close, assert_equal, numpy
from tests.models.builders import saved_and_loaded
from tests.models.seq_2_seq import SIZES, backbone, inputs, oracle_logits, tokenizer, translator

SCHEMES = ("rotary", "sinusoidal")


def without_targets(rng, length, **options):
    """Inputs whose targets have only their start token."""
    given = inputs(rng, length=length, **options)
    given["decoder_padding_mask"][:, 1:] = 0
    given["decoder_token_ids"] *= given["decoder_padding_mask"]
    return given


@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_equal_float64(scheme, rng):
    model = backbone(scheme, num_decoder_layers=1)
    given = inputs(rng)
    logits = numpy(RoFormerSeq2SeqLM(model)(given))
    # float32, through three blocks, whose norms divide by the size of what they get
    assert_close([logits], [oracle_logits(model, given)], 1e-5)


def test_baseline_has_the_same_weights():
    one, other = backbone("rotary"), backbone("sinusoidal")
    assert [w.shape for w in one.weights] == [w.shape for w in other.weights]
    assert one.count_params() == other.count_params()


def test_transformer_base_by_default():
    config = RoFormerSeq2SeqBackbone(vocabulary_size=9, num_layers=1).get_config()
    expected = {"num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048, "dropout": 0.1}
    assert {name: config[name] for name in expected} == expected
    assert config["position_scheme"] == "rotary" and config["activation"] == "relu"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_added_padding_changes_nothing(scheme, rng):
    model = backbone(scheme)
    given = inputs(rng)
    outputs = model(given)
    # any tokens in the padding
    added = {
        name: np.pad(x, ((0, 0), (0, 4)), constant_values=0 if "mask" in name else rng.integers(40))
        for name, x in given.items()
    }
    for name, mask in (("encoder", "encoder_padding_mask"), ("decoder", "decoder_padding_mask")):
        real = given[mask] == 1
        one = numpy(outputs[f"{name}_sequence_output"])
        other = numpy(model(added)[f"{name}_sequence_output"])[:, : one.shape[1]]
        # Padding has no weight. Only the order of sums may differ, through as many blocks as above.
        np.testing.assert_allclose(other[real], one[real], atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("beams", [1, 3])
def test_cached_equals_whole(scheme, beams, rng):
    """Three tokens, then single ones, with one or several targets for each source."""
    model = backbone(scheme)
    given = inputs(rng, batch=2)
    ids = rng.integers(4, 40, (2 * beams, 9)).astype("int32")
    source, mask = given["encoder_token_ids"], given["encoder_padding_mask"]
    encoder_sequence = model.encode(source, mask)
    repeated = np.repeat(numpy(encoder_sequence), beams, 0), np.repeat(mask, beams, 0)
    whole = numpy(model.decode(ids, np.ones_like(ids), *repeated))
    cache = model.build_cache(len(ids), 9)
    cross_attention_cache = model.build_cross_attention_cache(encoder_sequence, mask)
    outputs = []
    for start, end in ((0, 3), *((i, i + 1) for i in range(3, 9))):
        output, cache = model.call_with_cache(
            ids[:, start:end], cache, start, cross_attention_cache
        )
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, atol=5e-6)


SMALL = {"num_layers": 1}


class Uncached(RoFormerSeq2SeqBackbone):
    """Generates without a cache."""

    supports_cache = False


def fixed_rng():
    """The same in each run: some seed would find two tokens that tie in float32."""
    return np.random.default_rng(7)


def test_cached_beam_search_equals_uncached():
    rng = fixed_rng()
    cached = backbone(**SMALL)
    uncached = Uncached.from_config(cached.get_config())
    uncached.set_weights(cached.get_weights())
    given = inputs(rng, batch=4, length=25)
    # starts of different lengths
    lengths = np.array([[1], [4], [2], [9]])
    given["decoder_padding_mask"] = (np.arange(25) < lengths).astype("int32")
    given["decoder_token_ids"] *= given["decoder_padding_mask"]
    outputs = []
    for model in (cached, uncached):
        model = RoFormerSeq2SeqLM(model)
        model.compile(sampler=BeamSearchSampler(num_beams=3), run_eagerly=True)
        outputs.append(model.generate(dict(given), stop_token_ids=[3, 5]))
    for name in ("decoder_token_ids", "decoder_padding_mask"):
        np.testing.assert_array_equal(outputs[0][name], outputs[1][name])
    kept = outputs[0]["decoder_token_ids"] * (np.arange(25) < lengths)
    np.testing.assert_array_equal(kept, given["decoder_token_ids"])


def test_greedy_takes_the_largest_logits():
    rng = fixed_rng()
    model = RoFormerSeq2SeqLM(backbone(**SMALL))
    model.compile(sampler="greedy")
    given = without_targets(rng, 12, batch=2)
    found = model.generate(dict(given), stop_token_ids=None)["decoder_token_ids"]
    ids = given["decoder_token_ids"].copy()
    for position in range(1, 12):
        mask = np.broadcast_to(np.arange(12) < position, ids.shape).astype("int32")
        logits = oracle_logits(
            model.backbone, {**given, "decoder_token_ids": ids, "decoder_padding_mask": mask}
        )
        ids[:, position] = logits[:, position - 1].argmax(-1)
    np.testing.assert_array_equal(found, ids)


def test_positions_that_need_scores_generate(rng):
    model = RoFormerSeq2SeqLM(backbone("t5", **SMALL))
    model.compile(sampler=BeamSearchSampler(num_beams=2))
    assert not model.backbone.supports_cache
    given = without_targets(rng, 6)
    assert model.generate(given, stop_token_ids=[3])["decoder_token_ids"].shape == (3, 6)


def test_dynamic_scaling_depends_on_the_text_so_far(rng):
    """The scale depends on the length of the text, not on the room for it."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3}
    model = RoFormerSeq2SeqLM(backbone(position_options={"rope_scaling": scaling}, **SMALL))
    assert not model.backbone.supports_cache
    ids = rng.integers(4, SIZES["vocabulary_size"], (2, 5)).astype("int32")
    source = np.ones((2, 4), "int32") * 5
    encoder_sequence = model.backbone.encode(source, np.ones_like(source))
    found = []
    for room in (5, 24):
        row = np.pad(ids, [[0, 0], [0, room - 5]])
        next = model._next_without_cache(encoder_sequence, np.ones_like(source))
        found.append(numpy(next(row, None, 5)[0]))
    np.testing.assert_allclose(*found, atol=1e-5)  # float32's noise in two graphs


def test_targets_with_a_start():
    model = translator(**SMALL)
    model.compile(sampler="greedy", run_eagerly=True)
    both = model.generate((["a dog ran", "a cat"], ["ein", ""]), max_length=9)
    assert both[0].startswith("ein") and both[1] == model.generate("a cat", max_length=9)
    assert model.generate(("a dog ran", "ein"), max_length=9) == both[0]
    with pytest.raises(
        ValueError, match="as many starts of targets as sources.*Received: 2 and 1 texts"
    ):
        model.generate((["a dog ran", "a cat"], ["ein"]))
    with pytest.raises(ValueError, match="no room for a new token: start 0 fills all 4"):
        model.generate((["a dog"], ["eine Katze und ein Hund lief"]), max_length=4)
    with pytest.raises(TypeError, match="Expected strings.*Received: 3"):
        model.generate((["a dog"], 3))
    with pytest.raises(ValueError, match="`stop_token_ids` must be a list.*Received: .*'</s>'"):
        model.generate("a dog", stop_token_ids="</s>")
    with pytest.raises(ValueError, match="Did you forget `dataset.batch"):
        model.generate(tf.data.Dataset.from_tensor_slices(["a dog"]))


def test_translate_takes_a_string_and_positive_batches():
    model = translator(**SMALL)
    model.compile(sampler="greedy", run_eagerly=True)
    assert translate(model, "a cat", max_length=6) == translate(model, ["a cat"], max_length=6)[0]
    assert translate(model, ["a \ud83d"], max_length=6)  # half an emoji is an unknown character
    for size in (0, -1, 2.0):
        with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
            translate(model, ["a cat"], batch_size=size)


def test_strings_of_all_sizes_in_one_graph(calls_of):
    model = translator(**SMALL)
    calls = calls_of(model, "generate_step")
    one = model.generate("a dog ran", max_length=9)
    assert isinstance(one, str)
    several = model.generate(["a dog ran", "a cat and a dog", ""], max_length=9)
    assert several[0] == one and len(several) == 3
    # 50 tokens more than the source at most
    inputs = model.preprocessor.generate_preprocess(["a dog ran"])
    assert inputs["decoder_token_ids"].shape[1] == inputs["encoder_token_ids"].shape[1] + 50
    if keras.backend.backend() == "tensorflow":
        assert len(calls) == 1


def test_the_preprocessor_adds_the_special_tokens():
    pair, proto = (["a dog"], ["ein"]), tokenizer().proto
    padded = RoFormerSentencePieceTokenizer(proto, sequence_length=4)
    found, expected = map(RoFormerSeq2SeqLMPreprocessor, (padded, tokenizer()))
    assert_equal(found(pair), expected(pair))
    assert_equal(found.count_tokens(pair), expected.count_tokens(pair))
    with pytest.raises(ValueError, match="must not add special tokens.*Received: add_eos=True"):
        RoFormerSeq2SeqLMPreprocessor(RoFormerSentencePieceTokenizer(proto, add_eos=True))


def test_fit_takes_pairs_and_dictionaries():
    pair = ["a dog", "a cat", "a"], ["ein Hund", "eine Katze", "ein"]
    named = {"encoder_text": pair[0], "decoder_text": np.array(pair[1])}
    model = translator(dropout=0.0, **SMALL)
    assert_equal(model.preprocessor(pair), model.preprocessor(named))
    model.compile(optimizer="sgd", run_eagerly=True)
    losses = [model.fit(x, shuffle=False, verbose=0).history["loss"] for x in (named, pair)]
    assert losses[1] < losses[0]
    with pytest.raises(ValueError, match="encoder_text"):
        model.fit({"source": pair[0], "target": pair[1]})


@pytest.mark.parametrize("kind", ["preset", "keras"])
def test_saved_and_loaded_with_its_vocabulary(kind, tmp_path):
    model = translator("sinusoidal", preprocessing={"encoder_sequence_length": 11}, **SMALL)

    def translations(model):
        model.compile(sampler="greedy", run_eagerly=True)
        return model.generate(["a dog ran", "a cat and a dog"], max_length=8)

    expected = translations(model)
    if kind == "preset":
        model.save_to_preset(tmp_path / "model")
        loaded = RoFormerSeq2SeqLM.from_preset(tmp_path / "model")
    else:
        loaded = saved_and_loaded(model, tmp_path)
    assert translations(loaded) == expected
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
    assert loaded.backbone.position_scheme_name == "sinusoidal"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, "must divide"),
        ({"hidden_dim": 0}, "positive integer"),
        ({"position_scheme": "rotation"}, "must be one of"),
    ],
)
def test_wrong_options_raise_errors(options, message):
    with pytest.raises(ValueError, match=message):
        RoFormerSeq2SeqBackbone(**{**SIZES, **options})
