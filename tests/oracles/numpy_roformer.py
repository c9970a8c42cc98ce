"""RoFormer in float64 NumPy, directly from the equations: slow and easy to check by eye.

Weights come as a dict of the variables of an original checkpoint, by name. Sizes in comments: b
batch, t length, h heads, d head size, H hidden size, E embedding size, V vocabulary.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu_erf(x):
    """x * Phi(x), Phi the standard normal distribution function."""
    x = np.asarray(x, np.float64)
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x):
    """The approximation of Hendrycks and Gimpel, arXiv:1606.08415."""
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(np.asarray(x, np.float64), 0)


ACTIVATIONS = {"gelu": gelu_erf, "gelu_tanh": gelu_tanh, "relu": relu}


def softmax(x):
    """Over the last axis; -inf has probability 0."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm(x, gamma, beta, epsilon=1e-7):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, over the last axis."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * gamma + beta


def rms_norm(x, epsilon=1e-7):
    """x / sqrt(mean(x^2) + epsilon) over the last axis: RoFormerV2's norm, without weights."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)


def rotary_interleaved(x, positions, base=10000.0):
    """Rotates each pair (2i, 2i+1) of a token at position m by the angle m * base^(-2i/d).

    RoFormer paper, equations 14 and 15. `x` is (b, t, h, d), `positions` (t,) or (b, t).
    """
    x = np.asarray(x, np.float64)
    positions = np.broadcast_to(np.asarray(positions, np.float64), x.shape[:2])
    size = x.shape[-1]
    rotated = np.empty_like(x)
    for i in range(size // 2):
        angle = positions * base ** (-2 * i / size)  # (b, t)
        cos, sin = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]  # (b, t, 1): for all heads
        rotated[..., 2 * i] = x[..., 2 * i] * cos - x[..., 2 * i + 1] * sin
        rotated[..., 2 * i + 1] = x[..., 2 * i] * sin + x[..., 2 * i + 1] * cos
    return rotated


def rotary_half(x, positions, base=10000.0):
    """The same rotation of the pairs (i, i + d/2), as GPT-NeoX and LLaMA lay them out."""
    size = np.shape(x)[-1]
    order = [i // 2 + (i % 2) * (size // 2) for i in range(size)]  # 0, d/2, 1, d/2 + 1, ...
    rotated = np.empty(np.shape(x))
    rotated[..., order] = rotary_interleaved(np.asarray(x)[..., order], positions, base)
    return rotated


def padding_mask(token_ids):
    """The original's mask: id 0 is padding everywhere except at position 0. (b, t) bool."""
    mask = np.asarray(token_ids) != 0
    mask[:, 0] = True
    return mask


def attention_mask(padding, application="encoder", segment_ids=None):
    """Returns which keys a query sees: bool (b, query, key). `padding` is True for tokens."""
    b, t = np.shape(padding)
    visible = np.empty((b, t, t), bool)
    for n in range(b):
        for query in range(t):
            for key in range(t):
                if application == "encoder":
                    allowed = True
                elif application == "lm":
                    allowed = key <= query
                else:  # unilm: segment 0 sees segment 0, segment 1 is causal
                    allowed = segment_ids[n][: key + 1].sum() <= segment_ids[n][: query + 1].sum()
                visible[n, query, key] = allowed and padding[n][key]
    return visible


def attention(query, key, value, mask):
    """softmax(q k^T / sqrt(d)) v. q, k, v (b, t, h, d), mask (b, t, t) -> (b, t, h, d)."""
    b, t, h, d = np.shape(query)
    output = np.zeros((b, t, h, np.shape(value)[-1]))
    for n in range(b):
        for head in range(h):
            scores = query[n, :, head] @ key[n, :, head].T / math.sqrt(d)
            output[n, :, head] = softmax(np.where(mask[n], scores, -np.inf)) @ value[n, :, head]
    return output


def dense(x, variables, name):
    """x @ kernel + bias; the bias is absent in RoFormerV2."""
    kernel = np.asarray(variables[f"{name}/kernel"], np.float64)
    return x @ kernel + np.asarray(variables.get(f"{name}/bias", 0), np.float64)


def norm(x, variables, name, epsilon):
    """Layer norm with the weights `name`/{gamma,beta}, or RMS norm without them (v2)."""
    if f"{name}/gamma" not in variables:
        return rms_norm(x, epsilon)
    return layer_norm(x, variables[f"{name}/gamma"], variables[f"{name}/beta"], epsilon)


def embeddings(variables, token_ids, segment_ids=None, epsilon=1e-7):
    """Token and segment embeddings, normalized and, if E != H, mapped to H. (b, t) -> (b, t, H)."""
    x = np.asarray(variables["bert/embeddings/word_embeddings"], np.float64)[token_ids]
    if segment_ids is not None:
        x = x + np.asarray(variables["bert/embeddings/token_type_embeddings"])[segment_ids]
    x = norm(x, variables, "bert/embeddings/LayerNorm", epsilon)
    mapping = "bert/encoder/embedding_hidden_mapping_in"
    return dense(x, variables, mapping) if f"{mapping}/kernel" in variables else x


def self_attention(x, variables, layer, heads, positions, mask):
    """Attention with rotated queries and keys, and all projections. (b, t, H) -> (b, t, H)."""
    prefix = f"bert/encoder/layer_{layer}/attention"
    query, key, value = (
        dense(x, variables, f"{prefix}/self/{name}").reshape(*x.shape[:2], heads, -1)
        for name in ("query", "key", "value")
    )
    query, key = rotary_interleaved(query, positions), rotary_interleaved(key, positions)
    output = attention(query, key, value, mask).reshape(*x.shape[:2], -1)
    return dense(output, variables, f"{prefix}/output/dense")


def feed_forward(x, variables, layer, activation="gelu"):
    prefix = f"bert/encoder/layer_{layer}"
    inner = ACTIVATIONS[activation](dense(x, variables, f"{prefix}/intermediate/dense"))
    return dense(inner, variables, f"{prefix}/output/dense")


def encoder_block(x, variables, layer, heads, positions, mask, activation="gelu", epsilon=1e-7):
    """Post-norm: each half is norm(x + half(x)). (b, t, H) -> (b, t, H)."""
    prefix = f"bert/encoder/layer_{layer}"
    x = x + self_attention(x, variables, layer, heads, positions, mask)
    x = norm(x, variables, f"{prefix}/attention/output/LayerNorm", epsilon)
    x = x + feed_forward(x, variables, layer, activation)
    return norm(x, variables, f"{prefix}/output/LayerNorm", epsilon)


def encoder(
    variables,
    config,
    token_ids,
    segment_ids=None,
    position_ids=None,
    application="encoder",
    activation=None,
    epsilon=1e-7,
):
    """Embeddings and all blocks. Returns the list [embedding output, block 0, block 1, ...].

    `config` is the content of `bert_config.json`. Without `segment_ids` there are no segments. By
    default `position_ids` are 0, 1, 2, ...
    """
    token_ids = np.asarray(token_ids)
    positions = np.arange(token_ids.shape[1]) if position_ids is None else position_ids
    mask = attention_mask(padding_mask(token_ids), application, segment_ids)
    states = [embeddings(variables, token_ids, segment_ids, epsilon)]
    for layer in range(config["num_hidden_layers"]):
        states.append(
            encoder_block(
                states[-1],
                variables,
                layer,
                config["num_attention_heads"],
                positions,
                mask,
                activation or config["hidden_act"],
                epsilon,
            )
        )
    return states


def mlm_head(x, variables, activation="gelu", epsilon=1e-12):
    """Transform, norm, product with the word embeddings, bias: logits (b, t, V).

    RoFormerV2's head is only the product.
    """
    transform = "cls/predictions/transform"
    if f"{transform}/dense/kernel" in variables:
        x = ACTIVATIONS[activation](dense(x, variables, f"{transform}/dense"))
        x = norm(x, variables, f"{transform}/LayerNorm", epsilon)
    logits = x @ np.asarray(variables["bert/embeddings/word_embeddings"], np.float64).T
    return logits + np.asarray(variables.get("cls/predictions/output_bias", 0), np.float64)


def pooler(x, variables, activation="tanh"):
    """Dense layer on position 0, with tanh or, for RoFormer-Sim, "linear". (b, t, H) -> (b, H)."""
    pooled = dense(x[:, 0], variables, "bert/pooler/dense")
    return np.tanh(pooled) if activation == "tanh" else pooled


def next_sentence(pooled, variables):
    """Probabilities of the two classes; the kernel is stored transposed, (2, H)."""
    kernel = np.asarray(variables["cls/seq_relationship/output_weights"], np.float64).T
    return softmax(pooled @ kernel + variables["cls/seq_relationship/output_bias"])


def masked_mean(x, mask):
    """Mean over the positions that `mask` (b, t) keeps. (b, t, H) -> (b, H)."""
    weights = np.asarray(mask, np.float64)[:, :, None]
    return (x * weights).sum(axis=1) / weights.sum(axis=1)


def select_tokens(variables, keep_tokens=None, compound_tokens=None):
    """Selects rows of the vocabulary, then appends (weighted) means, like the original's arguments.

    An item of `compound_tokens` is a list of ids, or [ids, weights]. Ids refer to the selected
    rows.
    """
    variables = dict(variables)
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        if name not in variables:
            continue
        rows = np.asarray(variables[name], np.float64)
        rows = rows if keep_tokens is None else rows[keep_tokens]
        means = [
            np.average(rows[item[0]], axis=0, weights=item[1])
            if isinstance(item[0], (list, tuple))
            else rows[item].mean(axis=0)
            for item in compound_tokens or []
        ]
        variables[name] = np.stack([*rows, *means])
    return variables
