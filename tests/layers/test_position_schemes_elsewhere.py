"""Position schemes against Hugging Face's implementations of T5 and DeBERTa."""

import numpy as np
import pytest

from roformer_tf import layers
from tests.layers.harness import numpy, randomize
from tests.layers.positioned_attention import positioned

HEADS, HEAD_DIM, WIDTH, SPAN = 2, 8, 16, 7


@pytest.mark.parametrize("sizes", [(32, 128), (64, 512), (10, 37)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets(sizes, bidirectional):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    num_buckets, max_distance = sizes
    scheme = layers.T5RelativeBias(1, num_buckets, max_distance, bidirectional)
    scheme.build()
    scheme.relative_bias.assign(np.arange(num_buckets)[:, None])
    distances = np.arange(-3 * max_distance, 3 * max_distance + 1)
    positions = np.concatenate([[0], distances])[None]
    found = numpy(scheme(positions, position_ids=positions))[0, 0, 0, 1:]
    expected = t5.T5Attention._relative_position_bucket(
        torch.tensor(distances), bidirectional, num_buckets, max_distance
    )
    np.testing.assert_array_equal(found, expected.numpy())


def test_deberta_attention(rng):
    """DeBERTa-v2 with `share_att_key`. Its table is one shorter; no distance here is clipped."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    ours = positioned(
        lambda **kwargs: layers.DebertaPosition(WIDTH, SPAN, **kwargs), HEADS, HEAD_DIM
    )()
    ours.build((None, None, WIDTH))
    randomize(ours)
    config = transformers.DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_relative_positions=SPAN,
        relative_attention=True,
        share_att_key=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=-1,
    )
    theirs = deberta.DisentangledSelfAttention(config).eval()
    qkv = ours.attention.qkv
    weights = zip(
        ("query_proj", "key_proj", "value_proj"),
        np.split(numpy(qkv.kernel), 3, axis=1),
        np.split(numpy(qkv.bias), 3),
        strict=True,
    )
    state = {}
    for name, kernel, bias in weights:
        state |= {f"{name}.weight": torch.tensor(kernel.T), f"{name}.bias": torch.tensor(bias)}
    theirs.load_state_dict(state)
    # rows of key - query against rows of query - key
    table = numpy(ours.attention.position_scheme.distance_table)[:0:-1]
    x = rng.normal(size=(2, SPAN, WIDTH)).astype("float32")
    positions = torch.arange(SPAN)
    with torch.no_grad():
        outputs, _ = theirs(
            torch.tensor(x),
            torch.ones(2, 1, SPAN, SPAN, dtype=torch.bool),
            relative_pos=(positions[:, None] - positions)[None],
            rel_embeddings=torch.tensor(table.copy()),
        )
    dense = ours.attention.output_dense
    expected = outputs.numpy() @ numpy(dense.kernel) + numpy(dense.bias)
    np.testing.assert_allclose(numpy(ours(x)), expected, atol=1e-5)
