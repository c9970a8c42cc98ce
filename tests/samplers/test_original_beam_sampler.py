"""The original's beam search against bert4keras and its recorded texts."""

import json

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import roformer_tf
from roformer_tf.samplers import OriginalBeamSampler, valid_token_mask
from tests.layers.harness import compiled, numpy
from tests.oracles.run_original import small_config
from tests.samplers import table_model

LENGTH = 7


def texts(sampler, tables, lengths, stops, wrap=None):
    """Returns the new tokens of each sequence, up to the stop token that ends it."""
    _, mask = table_model.make_prompt(lengths, LENGTH)
    prompt, found = table_model.search(sampler, tables, stops, lengths, LENGTH, wrap=wrap)
    kept = numpy(valid_token_mask(found, mask, stops, sampler.min_ends, sampler.min_length))
    assert np.all(found[mask] == prompt[mask])
    assert not np.any(found[~kept])  # nothing is written after the end
    return [row[k & ~m].tolist() for row, k, m in zip(found, kept, mask, strict=True)]


@pytest.mark.oracle
@pytest.mark.parametrize(
    "topk, minlen, min_ends, temperature",
    [(1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 2, 1), (3, 4, 1, 0.7), (4, 3, 2, 1), (4, 1, 1, 1.5)],
)
def test_table(original, rng, topk, minlen, min_ends, temperature):
    lengths = (1, 1, 1, 1, 2, 2, 2, 4, 6)
    tables = table_model.make_tables(rng, len(lengths), 4, LENGTH - 1)
    sampler = OriginalBeamSampler(topk, minlen, min_ends, temperature=temperature)
    found = texts(sampler, tables, lengths, [3])
    for row, length in enumerate(lengths):
        expected = original.decode(
            "beam_search",
            end_id=3,
            maxlen=LENGTH - length,
            minlen=minlen,
            table=tables[row],
            topk=topk,
            min_ends=min_ends,
            temperature=temperature,
        ).tolist()
        assert found[row] == expected, f"row {row}"


def test_compiled_equals_eager(rng):
    lengths = (1, 2, 4)
    tables = table_model.make_tables(rng, len(lengths), 4, LENGTH - 1)
    sampler = OriginalBeamSampler(3, min_length=2)
    eager = texts(sampler, tables, lengths, [3])
    assert texts(sampler, tables, lengths, [3], compiled) == eager


def without_cache(model, lengths, call):
    """Returns `next` without a cache. With UniLM prompts are segment 0, and the rest segment 1."""
    lengths = np.array(lengths)[:, None]

    def next(prompt, cache, index):
        rows, length = prompt.shape
        new = np.arange(length) >= lengths.repeat(rows // len(lengths), axis=0)
        inputs = {
            "token_ids": prompt,
            "segment_ids": new.astype("int32") * (model.backbone.masking == "unilm"),
            "padding_mask": np.ones((rows, length), "int32"),  # later tokens are hidden anyway
        }
        logits = call(keras.tree.map_structure(ops.convert_to_tensor, inputs))
        return ops.convert_to_tensor(logits[:, int(index) - 1]), None, cache

    return next


def generate(model, prompts, topk, end_ids, maxlen, minlen, call=None):
    """Returns the new tokens of prompts with different lengths and stop tokens."""
    lengths = [len(prompt) for prompt in prompts]
    rows = np.zeros((len(prompts), max(lengths) + maxlen), "int32")
    mask = np.ones_like(rows, "bool")  # positions after the room count as prompt
    for row, prompt in enumerate(prompts):
        rows[row, : len(prompt)] = prompt
        mask[row, len(prompt) : len(prompt) + maxlen] = False
    found = OriginalBeamSampler(topk, minlen)(
        without_cache(model, lengths, call or model),
        rows,
        index=min(lengths),
        mask=mask,
        stop_token_ids=[np.array(end_ids, "int32")[:, None]],
        model=model,
    )
    return [
        row[length : length + maxlen].tolist()
        for row, length in zip(numpy(found), lengths, strict=True)
    ]


def load(folder, kind):
    masking = {"lm": "causal", "unilm": "unilm"}[kind]
    return roformer_tf.RoFormerCausalLM.from_preset(
        folder,
        preprocessor=None,
        masking=masking,
        layer_norm_epsilon=1e-7,
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    "kind, prompt, end_id", [("lm", [2, 17, 3], 7), ("unilm", [2, 11, 8, 20, 3], 12)]
)
def test_model(original, tmp_path, kind, prompt, end_id):
    # a fixed seed: some seed would find two scores that tie in float32
    original.make_checkpoint(tmp_path, small_config(vocab_size=30), seed=5, with_mlm="linear")
    topk, maxlen, minlen = 3, 8, 2
    found = generate(load(tmp_path, kind), [prompt], topk, [end_id], maxlen, minlen)
    expected = original.decode(
        "beam_search",
        end_id=end_id,
        maxlen=maxlen,
        minlen=minlen,
        prompt=prompt,
        folder=tmp_path,
        application=kind,
        topk=topk,
    ).tolist()
    assert found == [expected + [0] * (maxlen - len(expected))]


@pytest.mark.parametrize("kind", ["lm", "unilm"])
def test_golden_texts(shared_dir, kind):
    golden = json.loads((shared_dir / "golden" / "decoding.json").read_text(encoding="utf-8"))
    model = load(shared_dir / "golden" / "checkpoints" / golden["checkpoint"], kind)
    groups = {}
    for case in golden["cases"]:
        if case["kind"] == kind:
            options = case["topk"], case["maxlen"], case["minlen"]
            groups.setdefault(options, []).append(case)
    assert sum(map(len, groups.values())) == 27

    def call(inputs):  # compiled, for a hundred calls
        return keras.Model.predict_on_batch(model, inputs)

    for (topk, maxlen, minlen), cases in groups.items():
        prompts, end_ids = [c["inputs"][0] for c in cases], [c["end_id"] for c in cases]
        found = generate(model, prompts, topk, end_ids, maxlen, minlen, call)
        outputs = [case["output"] for case in cases]
        assert found == [output + [0] * (maxlen - len(output)) for output in outputs]


def test_config_and_errors():
    sampler = OriginalBeamSampler(3, 2, 4, temperature=0.5)
    again = keras_hub.samplers.deserialize(keras_hub.samplers.serialize(sampler))
    assert type(again) is OriginalBeamSampler
    expected = {"num_beams": 3, "min_length": 2, "min_ends": 4, "temperature": 0.5}
    assert again.get_config() == expected
    with pytest.raises(
        ValueError, match="`min_length` must not be negative. Received: min_length=-1"
    ):
        OriginalBeamSampler(min_length=-1)
