"""The cache of a model follows its beams: results equal those without a cache."""

import numpy as np
from keras import ops

import roformer_tf
from roformer_tf.samplers import BeamSearchSampler
from tests.layers.harness import numpy
from tests.models.builders import SIZES, backbone, randomized

LENGTHS, LENGTH, STOPS = (2, 3, 6), 10, [7, 20]


def cached_step(causal_lm, ids):
    """Returns `next` with a cache, and the cache up to the end of the shortest prompt."""
    start = min(LENGTHS) - 1
    cache = causal_lm.backbone.build_cache(len(ids), LENGTH)
    _, cache = causal_lm.backbone.call_with_cache({"token_ids": ids[:, :start]}, cache, 0)

    def next(prompt, cache, index):
        last = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))
        hidden, cache = causal_lm.backbone.call_with_cache({"token_ids": last}, cache, index - 1)
        return causal_lm.head(hidden)[:, 0], None, cache

    return next, cache


def whole_step(causal_lm):
    """Returns `next` that runs the model on whole texts."""

    def next(prompt, cache, index):
        inputs = {"token_ids": prompt, "segment_ids": ops.zeros_like(prompt)}
        logits = causal_lm({**inputs, "padding_mask": ops.ones_like(prompt)})
        return (
            ops.slice(logits, (0, index - 1, 0), (len(logits), 1, logits.shape[-1]))[:, 0],
            None,
            cache,
        )

    return next


def test_cached_equals_whole():
    causal_lm = randomized(roformer_tf.RoFormerCausalLM(backbone("gpt")))
    # the same in each run: some seed would find two texts whose scores tie in float32
    ids = np.random.default_rng(6).integers(5, SIZES["vocabulary_size"], (len(LENGTHS), LENGTH))
    mask = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
    ids = ops.convert_to_tensor(np.where(mask, ids, 0), "int32")
    sampler = BeamSearchSampler(4, return_all_beams=True)
    given = {"index": min(LENGTHS), "mask": mask, "stop_token_ids": STOPS, "model": causal_lm}

    next, cache = cached_step(causal_lm, ids)
    texts, scores = map(numpy, sampler(next, ids, cache=cache, **given))
    expected, expected_scores = map(numpy, sampler(whole_step(causal_lm), ids, **given))
    assert texts.tolist() == expected.tolist()
    # eight logarithms from float32 logits of size 10, over 4 and less
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=3e-5)
    new = texts[:, 0][~mask]
    assert len(set(new.tolist())) > 3  # a model that repeats one token proves little
