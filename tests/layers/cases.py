"""Every layer with its inputs and its float64 oracle."""

from functools import partial

import numpy as np

from roformer_tf import layers
from tests.layers.decoder_cases import DECODER_CASES
from tests.layers.harness import Case, original_variables, rotary_context, rotary_tables
from tests.layers.linear_cases import TYPICAL_CASES
from tests.layers.position_cases import POSITION_CASES
from tests.layers.rotary_cases import ROTARY_CASES
from tests.layers.span_cases import SPAN_CASES
from tests.oracles import numpy_roformer as oracle

B, T, H, HEADS, F, V, E = 2, 6, 16, 2, 24, 20, 12
HEAD_DIM = H // HEADS

_rng = np.random.default_rng(2104_09864)
X = _rng.normal(size=(B, T, H)).astype("float32")
IDS = np.array([[2, 7, 7, 19, 3, 0], [2, 5, 9, 9, 9, 3]], "int32")
SEGMENTS = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1]], "int32")
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 3, 3]], "int32")
PADDING = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]], "int32")
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [-3.5, 0.25, 7, 1000, 1001, 65536]], "float32")
MASKINGS = {"bidirectional": "encoder", "causal": "lm", "unilm": "unilm"}


def bias_of(visible):
    """Returns booleans (b, query, key) as a bias on the scores, like `AttentionMask`."""
    return np.where(visible, 0, -1e9).astype("float32")[:, None]


def attention_oracle(weights, x, attention_bias=None, position=None):
    positions = np.zeros_like(POSITIONS) if position is None else POSITIONS
    mask = np.ones((len(x), T, T), bool)
    if attention_bias is not None:
        mask = np.broadcast_to(attention_bias[:, 0] == 0, mask.shape)
    variables = original_variables(weights, head_dim=HEAD_DIM)
    return oracle.self_attention(x.astype("float64"), variables, 0, HEADS, positions, mask)


def block_oracle(activation, epsilon):
    def block(weights, x, attention_bias, position):
        mask = np.broadcast_to(attention_bias[:, 0] == 0, (B, T, T))
        variables = original_variables(weights, head_dim=HEAD_DIM)
        x = x.astype("float64")
        return oracle.encoder_block(x, variables, 0, HEADS, POSITIONS, mask, activation, epsilon)

    return block


def embeddings_oracle(epsilon):
    names = {
        "token_embedding/embeddings": "bert/embeddings/word_embeddings",
        "segment_embedding/embeddings": "bert/embeddings/token_type_embeddings",
        "norm/gamma": "bert/embeddings/LayerNorm/gamma",
        "norm/beta": "bert/embeddings/LayerNorm/beta",
        "embedding_hidden_mapping_in/kernel": "bert/encoder/embedding_hidden_mapping_in/kernel",
        "embedding_hidden_mapping_in/bias": "bert/encoder/embedding_hidden_mapping_in/bias",
    }

    def embed(weights, token_ids, segment_ids=None):
        variables = {names[path]: value for path, value in weights.items()}
        return oracle.embeddings(variables, token_ids, segment_ids, epsilon)

    return embed


def head_oracle(weights, x, mask_positions=None):
    if mask_positions is not None:
        x = np.stack([row[index] for row, index in zip(x, mask_positions, strict=True)])
    prefix = "cls/predictions/transform"
    names = {
        "token_embedding/embeddings": "bert/embeddings/word_embeddings",
        "transform/kernel": f"{prefix}/dense/kernel",
        "transform/bias": f"{prefix}/dense/bias",
        "norm/gamma": f"{prefix}/LayerNorm/gamma",
        "norm/beta": f"{prefix}/LayerNorm/beta",
        "output_bias": "cls/predictions/output_bias",
    }
    weights = dict(weights)
    if "transform/bias" not in weights and "transform/kernel" in weights:
        x = x @ weights.pop("transform/kernel")  # v2: the map to the embedding's size
    return oracle.mlm_head(x, {names[path]: value for path, value in weights.items()})


def feed_forward_oracle(activation):
    def feed_forward(weights, x):
        variables = {
            f"bert/encoder/layer_0/{path.replace('_dense', '/dense')}": value
            for path, value in weights.items()
        }
        return oracle.feed_forward(x, variables, 0, activation)

    return feed_forward


def pooler_oracle(activation):
    def pool(weights, x):
        variables = {f"bert/pooler/{path}": value for path, value in weights.items()}
        return oracle.pooler(x, variables, activation)

    return pool


def tables_oracle(weights, token_ids, position_ids=None):
    positions = np.arange(T)[None] if position_ids is None else position_ids
    return rotary_tables(positions, HEAD_DIM)


def mask_oracle(masking):
    def mask(weights, padding_mask, segment_ids, document_ids=None):
        visible = oracle.attention_mask(padding_mask == 1, MASKINGS[masking], segment_ids)
        if document_ids is not None:
            return bias_of(visible & (document_ids[:, None] == document_ids[:, :, None]))
        return bias_of(visible[:, :1] if masking == "bidirectional" else visible)

    return mask


def attention(**options):
    return partial(layers.SelfAttention, HEADS, HEAD_DIM, **options)


def rotary_attention(**options):
    return attention(position_scheme=layers.RotaryPosition(HEAD_DIM), **options)


def block(**options):
    scheme = layers.RotaryPosition(HEAD_DIM)
    return partial(layers.EncoderBlock, H, F, HEADS, position_scheme=scheme, **options)


def head(embedding_dim, **options):
    def make(dtype="float32", **kwargs):
        embedding = layers.TokenEmbedding(V, embedding_dim, dtype=dtype, name="token_embedding")
        embedding.build(None)
        return layers.MaskedLMHead(embedding, dtype=dtype, **options, **kwargs)

    return make


def embeddings(embedding_dim, **options):
    return partial(layers.RoFormerEmbeddings, V, embedding_dim, H, **options)


CAUSAL = bias_of(oracle.attention_mask(PADDING == 1, "lm"))
PADDED = bias_of(oracle.attention_mask(PADDING == 1)[:, :1])
V2 = {"norm": "rms_norm", "epsilon": 1e-7, "use_bias": False}

SEGMENTED = {"token_ids": IDS, "segment_ids": SEGMENTS}
ROTATED = {"x": X, "position": rotary_context(POSITIONS, HEAD_DIM)}

CASES = [
    Case(
        "rms_norm",
        layers.RMSNorm,
        {"x": X},
        lambda weights, x: oracle.rms_norm(x, 1e-7),
        roundings=2,
    ),
    Case(
        "token_embedding",
        partial(layers.TokenEmbedding, V, H),
        {"inputs": IDS},
        lambda weights, inputs: weights["embeddings"][inputs],
        roundings=1,
    ),
    Case(
        "token_embedding_reversed",
        partial(layers.TokenEmbedding, V, H),
        {"inputs": X},
        lambda weights, inputs: inputs @ weights["embeddings"].T,
        constants={"reverse": True},
    ),
    Case("embeddings_v1", embeddings(H), SEGMENTED, embeddings_oracle(1e-12)),
    Case("embeddings_factorised", embeddings(E), SEGMENTED, embeddings_oracle(1e-12)),
    Case(
        "embeddings_without_segments",
        embeddings(H, num_segments=0),
        {"token_ids": IDS},
        embeddings_oracle(1e-12),
    ),
    Case("embeddings_v2", embeddings(E, **V2), SEGMENTED, embeddings_oracle(1e-7)),
    *(
        Case(
            f"rotary_position{'_given' * len(positions)}",
            partial(layers.RotaryPosition, HEAD_DIM),
            {"token_ids": IDS, **positions},
            tables_oracle,
            output_dtype="float32",
        )
        for positions in ({}, {"position_ids": POSITIONS})
    ),
    *(
        Case(
            f"attention_mask_{masking}{'_documents' * len(documents)}",
            partial(layers.AttentionMask, masking),
            {"padding_mask": PADDING, "segment_ids": SEGMENTS, **documents},
            mask_oracle(masking),
            output_dtype="float32",
        )
        for masking in MASKINGS
        for documents in ({}, {"document_ids": DOCUMENTS})
    ),
    Case("attention_without_positions", attention(), {"x": X}, attention_oracle),
    Case(
        "attention_rotary",
        rotary_attention(),
        {**ROTATED, "attention_bias": PADDED},
        attention_oracle,
        noise=2e-6,
    ),
    Case(
        "attention_v2_causal",
        rotary_attention(use_bias=False),
        {**ROTATED, "attention_bias": CAUSAL},
        attention_oracle,
        noise=2e-6,
    ),
    *(
        Case(
            name,
            partial(layers.FeedForward, H, F, activation, use_bias),
            {"x": X},
            feed_forward_oracle(activation),
        )
        for name, activation, use_bias in (
            ("feed_forward", "gelu", True),
            ("feed_forward_gelu_tanh", "gelu_tanh", True),
            ("feed_forward_v2", "relu", False),
        )
    ),
    Case(
        "encoder_block_v1",
        block(),
        {**ROTATED, "attention_bias": PADDED},
        block_oracle("gelu", 1e-12),
        noise=2e-6,
        roundings=10,
    ),
    Case(
        "encoder_block_v2",
        block(activation="relu", **V2),
        {**ROTATED, "attention_bias": CAUSAL},
        block_oracle("relu", 1e-7),
        noise=2e-6,
        roundings=10,
    ),
    *(
        Case(f"pooler_{name}", partial(layers.Pooler, name), {"x": X}, pooler_oracle(name))
        for name in ("tanh", "linear")
    ),
    Case(
        "mean_pooling",
        layers.MeanPooling,
        {"x": X, "padding_mask": PADDING},
        lambda weights, x, padding_mask: oracle.masked_mean(x, padding_mask),
        roundings=2,
    ),
    Case("head_v1", head(H), {"x": X}, head_oracle, noise=2e-6, roundings=8),
    Case(
        "head_of_positions",
        head(E),
        {"x": X, "mask_positions": np.array([[1, 4], [5, 0]], "int32")},
        head_oracle,
        noise=2e-6,
        roundings=8,
    ),
    Case("head_v2", head(H, transform=False), {"x": X}, head_oracle),
    Case("head_v2_factorised", head(E, transform=False), {"x": X}, head_oracle),
    *POSITION_CASES,
    *ROTARY_CASES,
    *TYPICAL_CASES,
    *DECODER_CASES,
    *SPAN_CASES,
]
