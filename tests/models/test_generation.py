"""`RoFormerCausalLM.generate`: cached equals uncached, strings in and out, and its options."""

import functools

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import roformer_tf
from roformer_tf.samplers import OriginalBeamSampler
from tests.layers.harness import compiled, numpy, quantized
from tests.models import seq_2_seq
from tests.models.builders import SIZES, backbone, randomized, saved_and_loaded, task

LENGTH = 14
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
MODELS = {
    "gpt": ("gpt", {}),
    "sim": ("sim", {"pooler": None}),
    "v2": ("v2_causal", {}),
    "learned": ("gpt", {"position_scheme": "learned", "max_sequence_length": 220}),
    "yarn": ("sim", {"pooler": None, "rope_scaling": YARN}),
    "elu": ("gpt", {"attention": "elu"}),
    "favor": ("gpt", {"attention": "favor", "attention_options": {"seed": 1}}),
    "cosine": ("gpt", {"attention": "cosine", "position_scheme": "none"}),
    # without a cache
    "t5": ("gpt", {"position_scheme": "t5"}),
    "deberta_unilm": ("sim", {"pooler": None, "position_scheme": "deberta"}),
    "elu_dynamic": ("gpt", {"attention": "elu", "rope_scaling": DYNAMIC}),
}


@functools.cache
def model(name):
    kind, options = MODELS[name]
    causal_lm = roformer_tf.RoFormerCausalLM(backbone(kind, **options))
    # random biases keep it from repeating one token
    return randomized(causal_lm)


def prompts(lengths, length=LENGTH):
    """Prompts of these lengths, the same in each run.

    Some seed would find two tokens that tie in float32.
    """
    rng = np.random.default_rng(lengths)
    ids = rng.integers(5, SIZES["vocabulary_size"], size=(len(lengths), length))
    mask = np.arange(length) < np.array(lengths)[:, None]
    return {"token_ids": ids * mask, "padding_mask": mask.astype("int32")}


def whole_sequences(causal_lm, ids, given, real=None):
    """Inputs of a forward pass over whole sequences."""
    unilm = causal_lm.backbone.masking == "unilm"
    real = np.ones_like(given) if real is None else real
    segments = 1 - given if unilm else 0 * given
    return {
        "token_ids": ids.astype("int32"),
        "segment_ids": segments.astype("int32"),
        "padding_mask": real.astype("int32"),
    }


def assert_likeliest(causal_lm, prompt, ids, tolerance=0.0):
    """Checks for greedy search: each new token is the likeliest in a pass over the whole text."""
    given = prompt["padding_mask"].astype("int32")
    np.testing.assert_array_equal(ids * given, prompt["token_ids"] * given)
    logits = numpy(ops.cast(causal_lm(whole_sequences(causal_lm, ids, given)), "float32"))[:, :-1]
    chosen = np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    new = given[:, 1:] == 0
    assert (chosen + tolerance >= logits.max(-1))[new].all()
    # a model that repeats one token proves little
    assert len(set(ids[:, 1:][new].tolist())) > 1


@pytest.mark.parametrize("name", [name for name in MODELS if name != "elu_dynamic"])
def test_greedy(name):
    """Prompts of different lengths, with a cache or without."""
    causal_lm, prompt = model(name), prompts([1, 7, 4])
    causal_lm.compile(sampler="greedy", run_eagerly=True)  # a graph does not pay for a few tokens
    found = causal_lm.generate(prompt, stop_token_ids=None)
    assert found["padding_mask"].all()
    assert_likeliest(causal_lm, prompt, found["token_ids"])


@pytest.mark.parametrize(
    ("name", "sampler", "length"),
    [
        ("gpt", "greedy", 220),
        pytest.param("sim", "beam", 220, marks=pytest.mark.slow),
        pytest.param("favor", "beam", 40, marks=pytest.mark.slow),
    ],
)
def test_cached_equals_uncached(name, sampler, length, monkeypatch):
    """More than 200 tokens, against the same loop without a cache.

    `test_greedy` checks the loop for each model.
    """
    causal_lm, prompt = model(name), prompts([3, 18, 9], length)
    results = []
    for supports_cache in (True, False):
        monkeypatch.setattr(type(causal_lm.backbone), "supports_cache", supports_cache)
        causal_lm.compile(sampler=sampler)
        results.append(causal_lm.generate(prompt, stop_token_ids=None)["token_ids"])
    np.testing.assert_array_equal(*results)
    assert len(np.unique(results[0][:, 18:])) > 1  # a model that repeats one token proves little


def test_scale_of_the_current_length():
    """Dynamic scaling without a cache: each new token is the likeliest after the text before it."""
    causal_lm, prompt = model("elu_dynamic"), prompts([3])
    causal_lm.compile(sampler="greedy", run_eagerly=True)
    ids = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    for position in range(3, LENGTH):
        before = whole_sequences(causal_lm, ids[:, :position], np.ones((1, position)))
        assert numpy(causal_lm(before))[0, -1].argmax() == ids[0, position]


@pytest.mark.parametrize("name", [pytest.param("gpt", marks=pytest.mark.slow), "sim", "cosine"])
def test_logits_of_long_texts(name):
    causal_lm, prompt = model(name), prompts([3, 18, 9], 220)
    ids = prompts([220] * 3, 220)["token_ids"]

    def cached_logits(inputs):
        causal_lm.sampler = recorder = Recorder()
        causal_lm.generate_step(inputs)
        return recorder.logits

    given = prompt["padding_mask"]
    inputs = whole_sequences(causal_lm, ids, given, given)
    found = numpy(compiled(cached_logits)(inputs))
    expected = numpy(causal_lm(whole_sequences(causal_lm, ids, given)))[:, 2:-1]
    # 220 keys in a sum, two blocks, and the head
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


class Recorder(keras_hub.samplers.Sampler):
    """Changes nothing, and records the logits `(batch, steps, vocabulary)`."""

    def __call__(self, next, prompt, cache, index, **kwargs):
        def body(position, cache, recorded):
            logits, _, cache = next(prompt, cache, position)
            recorded = ops.slice_update(recorded, (0, position, 0), logits[:, None])
            return position + 1, cache, recorded

        batch, length = ops.shape(prompt)
        recorded = ops.zeros((batch, length, SIZES["vocabulary_size"]))
        loop = lambda position, *_: position < length, body, (index, cache, recorded)
        self.logits = ops.while_loop(*loop)[2][:, 3:]
        return prompt


@pytest.mark.parametrize("kind", ["gpt", "sim"])
def test_batches(kind):
    """A sequence does not depend on the others, here with a scale that depends on its length."""
    options = {"pooler": None, "num_layers": 1, "rope_scaling": DYNAMIC}
    causal_lm = randomized(roformer_tf.RoFormerCausalLM(backbone(kind, **options)))
    causal_lm.compile(sampler="greedy", run_eagerly=True)  # a graph does not pay for a few tokens
    prompt = prompts([9, 2], 13)
    together = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in prompt.items()}
        found = causal_lm.generate(alone, stop_token_ids=None)["token_ids"]
        np.testing.assert_array_equal(found[0], together[row])


def test_floatx_changes_no_dtype():
    causal_lm, prompt = model("gpt"), prompts([3, 5])
    causal_lm.compile(sampler="greedy", run_eagerly=True)
    expected = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    keras.config.set_floatx("float64")
    found = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sim", "t5"])
def test_xla(name):
    """The loop with a cache and without. `test_logits_of_long_texts` has every kind of cache."""
    causal_lm, prompt = model(name), prompts([6, 3])
    results = []
    for jit_compile in (False, True):
        causal_lm.compile(sampler="greedy", jit_compile=jit_compile)
        results.append(causal_lm.generate(prompt, stop_token_ids=[5])["token_ids"])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "int8"])
@pytest.mark.parametrize("kind", ["gpt", "sim"])
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_few_bits(dtype, kind):
    causal_lm = roformer_tf.RoFormerCausalLM(
        backbone(kind, pooler=None, dtype=None if dtype == "int8" else dtype)
    )
    randomized(causal_lm)
    if dtype == "int8":
        quantized(causal_lm)
    causal_lm.compile(sampler="greedy", run_eagerly=True)
    prompt = prompts([6, 3])
    ids = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    # two dozen roundings of logits of size 4; int8 rounds the features of each sequence
    tolerance = {"mixed_bfloat16": 0.4, "mixed_float16": 0.05, "int8": 0.4}[dtype]
    assert_likeliest(causal_lm, prompt, ids, tolerance)


def greedy_task(name):
    causal_lm = task(name, preprocessor={"sequence_length": 14}, num_layers=2)
    causal_lm.compile(sampler="greedy")
    return causal_lm


@pytest.fixture(scope="module")
def gpt():
    return greedy_task("causal_lm")


@pytest.fixture(scope="module")
def sim():
    return greedy_task("causal_lm_sim")


def expected_text(causal_lm, ids, segments, length):
    """Greedy search by forward passes over whole texts, up to [SEP]."""
    tokenizer, start = causal_lm.preprocessor.tokenizer, len(ids)
    while len(ids) < length and tokenizer.end_token_id not in ids[start:]:
        inputs = {"token_ids": [ids], "segment_ids": [segments], "padding_mask": [[1] * len(ids)]}
        logits = causal_lm({name: np.array(value) for name, value in inputs.items()})
        ids = [*ids, int(numpy(logits)[0, -1].argmax())]
        segments = [*segments, int(causal_lm.backbone.masking == "unilm")]
    return tokenizer.detokenize(ids[start:])


def test_continuations_of_prompts(gpt):
    texts = ["天地玄", "", "日月"]
    ids = [gpt.preprocessor.tokenizer(text) for text in texts]
    expected = [expected_text(gpt, [2, *map(int, row)], [0] * (1 + len(row)), 14) for row in ids]
    assert gpt.generate(texts) == [text + new for text, new in zip(texts, expected)]
    assert gpt.generate(texts, strip_prompt=True) == expected
    assert gpt.generate(texts[0]) == texts[0] + expected[0]
    assert gpt.generate(tf.constant(texts[0])) == texts[0] + expected[0]
    short = expected_text(gpt, [2, *map(int, ids[0])], [0] * 4, 6)
    assert gpt.generate(texts[0], max_length=np.int64(6), strip_prompt=True) == short


def test_targets_of_sources(sim):
    sources = ["天地玄", "", "日月"]
    expected = []
    for source in sources:
        ids = [2, *map(int, sim.preprocessor.tokenizer(source)), 3]
        expected.append(expected_text(sim, ids, [0] * len(ids), 14))
    assert sim.generate(sources) == expected
    assert sim.generate(sources[0]) == expected[0]
    assert sim.generate(sources[0], strip_prompt=False) == f"{sources[0]}\n{expected[0]}"
    begun = [2, *map(int, sim.preprocessor.tokenizer("天地玄")), 3, 9, 11]
    beginning = sim.preprocessor.tokenizer.detokenize([9, 11])
    whole = expected_text(sim, begun, [0] * 5 + [1] * 2, 14)
    assert sim.generate(("天地玄", beginning)) == beginning + whole  # the answer
    assert sim.generate(("天地玄", beginning), strip_prompt=True) == whole
    assert sim.generate((["天地玄"], [beginning]), strip_prompt=False) == [
        "天地玄\n" + beginning + whole
    ]


def test_datasets(gpt):
    import tensorflow as tf

    texts = ["天地", "玄黄", "宇"]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    assert gpt.generate(data) == gpt.generate(np.array(texts)) == gpt.generate(texts)


def test_stop_tokens():
    causal_lm, prompt = model("gpt"), prompts([3, 5])
    causal_lm.compile(sampler="greedy", run_eagerly=True)
    free = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(causal_lm.generate(prompt, stop_token_ids=[])["token_ids"], free)
    stops = [int(free[0, 6]), int(free[1, 8])]
    found = causal_lm.generate(prompt, stop_token_ids=stops)
    for row, start in enumerate((3, 5)):
        end = next(i for i in range(start, LENGTH) if free[row, i] in stops) + 1
        assert found["padding_mask"][row].tolist() == [1] * end + [0] * (LENGTH - end)
        np.testing.assert_array_equal(found["token_ids"][row, :end], free[row, :end])
    # no stop token among the first eight
    later = causal_lm.generate(prompt, stop_token_ids=stops, min_new_tokens=8)
    for row, start in enumerate((3, 5)):
        assert not np.isin(later["token_ids"][row, start : start + 8], stops).any()
    assert (
        causal_lm.generate(prompt, stop_token_ids=stops)["padding_mask"].sum()
        == found["padding_mask"].sum()
    )


def test_one_graph_for_all_minimums(calls_of):
    causal_lm, prompt = model("gpt"), prompts([3, 5])
    causal_lm.compile(sampler="greedy")
    traced = calls_of(causal_lm, "generate_step")
    free = causal_lm.generate(prompt, stop_token_ids=None)["token_ids"]
    stops = free[[0, 1], [4, 6]].tolist()
    del traced[:]
    for count in (0, 8, 0, 3, 1, 8):  # one graph without a minimum, one with
        output = causal_lm.generate(prompt, stop_token_ids=stops, min_new_tokens=count)
        for row, start in enumerate((3, 5)):
            tokens = output["token_ids"][row, start : output["padding_mask"][row].sum()]
            ends = np.flatnonzero(np.isin(tokens, stops))
            assert ends.size == 0 or (ends[0] >= count and ends.tolist() == [len(tokens) - 1])
            if count < 2:
                assert tokens.tolist() == free[row, start : start + 2].tolist()
    assert len(traced) == 2


def test_padding_with_a_stop_token():
    """Tokens at the positions to fill are not read, not even a stop token."""
    causal_lm, prompt = model("gpt"), prompts([3, 5])
    causal_lm.compile(sampler="greedy", run_eagerly=True)
    expected = causal_lm.generate(dict(prompt), stop_token_ids=[3])
    filled = np.where(prompt["padding_mask"], prompt["token_ids"], 3)
    found = causal_lm.generate({**prompt, "token_ids": filled}, stop_token_ids=np.array([3]))
    np.testing.assert_array_equal(found["padding_mask"], expected["padding_mask"])
    kept = expected["padding_mask"]
    np.testing.assert_array_equal(found["token_ids"][kept], expected["token_ids"][kept])


@pytest.mark.parametrize("options, count", [({}, 1), ({"min_length": 5}, 5), ({"min_ends": 3}, 3)])
@pytest.mark.parametrize("kind", ["causal_lm", "seq_2_seq_lm"])
def test_texts_end_by_the_rules_of_the_sampler(kind, options, count, rng):
    if kind == "causal_lm":
        language_model, prompt, name = model("gpt"), prompts([4]), "padding_mask"
    else:
        language_model = roformer_tf.RoFormerSeq2SeqLM(seq_2_seq.backbone(num_layers=1))
        prompt, name = seq_2_seq.inputs(rng, batch=1, length=12), "decoder_padding_mask"
        prompt[name][:, 1:] = 0
    start = prompt[name].sum()
    language_model.compile(sampler=OriginalBeamSampler(num_beams=1, **options), run_eagerly=True)
    every_token = list(range(language_model.backbone.vocabulary_size))
    output = language_model.generate(prompt, stop_token_ids=every_token)
    assert output[name].astype(int).sum() == start + count


def test_samplers_with_seeds(gpt):
    drawn = []
    for seed in (1, 1, 2):
        sampler = keras_hub.samplers.TopPSampler(p=0.9, temperature=2.0, seed=seed)
        gpt.compile(sampler=sampler, run_eagerly=True)
        drawn.append(gpt.generate(["天地"] * 4, max_length=7))
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 1 and gpt.generate(["天地"] * 4, max_length=7) != drawn[2]
    gpt.compile(sampler="greedy")


def test_errors(gpt):
    import tensorflow as tf

    with pytest.raises(ValueError, match="dataset is empty"):
        gpt.generate([])
    with pytest.raises(TypeError, match="Received: 3 of type int as example 1"):
        gpt.generate(["天", 3])
    for max_length in (1, 2.5, "9"):
        with pytest.raises(ValueError, match="`max_length` must be an integer of at least 2"):
            gpt.generate("天", max_length=max_length)
    with pytest.raises(
        ValueError, match="no room for a new token.*of 5 tokens, max_length=5. It begins with '."
    ):
        gpt.generate(["天", "天地玄黄"], max_length=5)
    with pytest.raises(ValueError, match="no room for a new token.*of 21 tokens, max_length=14"):
        gpt.generate("天" * 20)
    with pytest.raises(ValueError, match="`min_new_tokens` must be .* min_new_tokens=-1"):
        gpt.generate("天", min_new_tokens=-1)

    with pytest.raises(
        ValueError, match="as many starts of targets as sources.*Received: 2 and 1 texts"
    ):
        gpt.generate((["天", "地"], ["玄"]))
    for stop_token_ids in (3, [3.5], [[3]]):
        with pytest.raises(ValueError, match="`stop_token_ids` must be a list"):
            gpt.generate("天", stop_token_ids=stop_token_ids)
    gpt.compile(sampler=keras_hub.samplers.TopKSampler(k=10**6))
    with pytest.raises(ValueError, match="`k` must be at most .*TopKSampler with k=1000000"):
        gpt.generate("天")
    gpt.compile(sampler="greedy")
    for wrong in (None, (["天"], None), iter(["天"])):
        with pytest.raises(TypeError, match="Expected strings.*Received:"):
            gpt.generate(wrong)
    with pytest.raises(ValueError, match="`strip_prompt` must be one of"):
        gpt.generate("天", strip_prompt="yes")
    with pytest.raises(ValueError, match=r"batches of strings: `dataset.batch\(16\)`"):
        gpt.generate(tf.data.Dataset.from_tensor_slices(["天", "地"]))

    without_cache = model("t5")
    without_cache.compile(sampler="contrastive")
    with pytest.raises(ValueError, match="Use another sampler.*without such a cache"):
        without_cache.generate(prompts([3]), stop_token_ids=None)

    of_ids = model("learned")
    with pytest.raises(ValueError, match='stop_token_ids="auto"'):
        of_ids.generate(prompts([3]))
    wrong = prompts([3, 5])
    wrong["padding_mask"][1, 0] = 0
    with pytest.raises(ValueError, match="must be 1 for the tokens of a prompt"):
        of_ids.generate(wrong, stop_token_ids=None)
    with pytest.raises(ValueError, match="prompt 1 has 14 tokens already, and at most 14"):
        of_ids.generate(prompts([3, 14]), stop_token_ids=None)
    with pytest.raises(ValueError, match="learned positions for 220 tokens only"):
        of_ids.generate(prompts([3], 221), stop_token_ids=None)


def test_a_graph_made_before_lora_is_not_used_after():
    causal_lm = greedy_task("causal_lm")
    before = causal_lm.generate("天地")
    causal_lm.enable_lora(2)
    for weight in causal_lm.backbone.trainable_weights:
        weight.assign(ops.ones_like(weight))
    after = causal_lm.generate("天地")
    causal_lm.compile(sampler="greedy")
    assert after == causal_lm.generate("天地") != before


def test_a_file_keeps_the_sampler(tmp_path):
    causal_lm = model("gpt")
    causal_lm.compile(sampler=OriginalBeamSampler(3, min_length=2))
    again = saved_and_loaded(causal_lm, tmp_path)
    assert type(again.sampler) is OriginalBeamSampler
    assert again.sampler.get_config() == causal_lm.sampler.get_config()
