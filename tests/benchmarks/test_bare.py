"""The hand-written model that the benchmarks compare with computes the same as ours."""

import keras
import numpy as np
import pytest

import roformer_tf
from benchmarks.sizes import Sizes, make_batch
from roformer_tf.optimizers import LayerwiseAdamW

SIZES = Sizes(layers=2, heads=2, width=16, intermediate=24, vocabulary=40)


@pytest.fixture
def models():
    if keras.config.backend() != "tensorflow":
        pytest.skip("the bare model is TensorFlow")
    from benchmarks.bare import BareRoFormer

    bare = BareRoFormer(SIZES, seed=0)
    backbone = roformer_tf.RoFormerBackbone(
        **SIZES.backbone_arguments(),
        dropout=0.0,
        attention_dropout=0.0,
    )
    ours = roformer_tf.RoFormerMaskedLM(backbone)
    embeddings, head = backbone.embeddings, ours.head
    pairs = [
        (embeddings.token_embedding, [bare.tokens]),
        (embeddings.segment_embedding, [bare.segments]),
        (embeddings.norm, bare.embedding_norm),
        (head.transform, bare.transform),
        (head.norm, bare.head_norm),
    ]
    for block, mine in zip(bare.blocks, backbone.encoder_blocks, strict=True):
        pairs += [
            (mine.attention.qkv, block["qkv"]),
            (mine.attention.output_dense, block["output"]),
            (mine.attention_norm, block["attention_norm"]),
            (mine.feed_forward.intermediate_dense, block["up"]),
            (mine.feed_forward.output_dense, block["down"]),
            (mine.feed_forward_norm, block["norm"]),
        ]
    rng = np.random.default_rng(0)
    for layer, variables in pairs:
        for weight, variable in zip(layer.weights, variables, strict=True):
            variable.assign(variable + 0.2 * rng.normal(size=variable.shape))
            weight.assign(variable)
    return bare, ours


def test_hidden_states(models):
    bare, ours = models
    batch = make_batch(0, SIZES, 3, 20)
    inputs = {name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    # two float32 computations of numbers up to 4, in another order
    np.testing.assert_allclose(
        bare.infer(*inputs.values()).numpy(), ours.backbone.predict_on_batch(inputs), atol=2e-5
    )


@pytest.mark.slow
def test_training_steps(models):
    bare, ours = models
    optimizer = LayerwiseAdamW(1e-5, num_layers=2, epsilon=1e-6, no_decay=())
    ours.compile(optimizer, weighted_metrics=None)
    start = ours.backbone.token_embedding.embeddings.numpy()
    for seed in range(3):
        batch = make_batch(seed, SIZES, 3, 20)
        labels = batch.pop("labels")
        loss = bare.step(*batch.values(), labels, 0.0)
        np.testing.assert_allclose(np.ravel(ours.train_on_batch(batch, labels))[0], loss, rtol=1e-5)
    moved = ours.backbone.token_embedding.embeddings.numpy() - start
    # steps of 1e-5 each; rounding of a float32 weight near 1 is 6e-8
    np.testing.assert_allclose(bare.tokens.numpy() - start, moved, atol=1e-6)
    assert np.abs(moved).max() > 2e-5
