"""The sums over the sequence of linear attention: no number for each query and key is ever kept.

For each query i, over the keys j that it sees,

    numerator_i   = sum_j exp(log_weight_j) (turned_query_i . turned_key_j) value_j
    denominator_i = sum_j exp(log_weight_j) (query_i . key_j)

both divided by the largest `exp(log_weight_j)` in sight, so that nothing overflows or vanishes.

Reference: equations 18 and 19 of arXiv 2104.09864; Katharopoulos et al., arXiv 2006.16236, section 3.
"""

import math

from keras import ops

# As a logarithm: never. Finite, so that differences of two of them are numbers.
_NEVER = -1e30
# Sums of so many terms are a product with one matrix; of more, the work would grow with the square of the length.
_FEW = 32


def bidirectional_sums(features, rotated, value, log_weight):
    """Numerators and denominators where every query sees every key.

    Args:
        features: tuple of queries' and keys' features `(batch, num_heads, length, features)`, for the denominator.
        rotated: the same, rotated by their positions, for the numerator.
        value: tensor `(batch, num_heads, length, head_dim)`.
        log_weight: tensor that broadcasts to `(batch, num_heads, length)`.

    Returns:
        Numerators `(batch, num_heads, length, head_dim)` and denominators `(batch, num_heads, length, 1)`.
    """
    (query, key), (turned_query, turned_key) = features, rotated
    largest = ops.stop_gradient(ops.max(log_weight, axis=-1, keepdims=True))
    weight = ops.exp(log_weight - largest)[..., None]
    sums = ops.matmul(ops.swapaxes(turned_key, -1, -2), value * weight)
    normalizer = ops.sum(key * weight, axis=-2)[..., None]
    return ops.matmul(turned_query, sums), ops.matmul(query, normalizer)


def initial_state(batch, num_heads, num_features, head_dim):
    """The state of `causal_sums` before the first token."""
    sums = ops.zeros((batch, num_heads, num_features, head_dim + 1), "float32")
    return sums, ops.full((batch, num_heads), _NEVER, "float32")


def causal_sums(features, rotated, value, log_weight, state=None, chunk_size=128):
    """Numerators and denominators where a query sees the keys up to its own place.

    Within a chunk, the product of queries and keys is masked; what all earlier chunks amount to is one matrix,
    `features x head_dim`, for each chunk. Every sum is relative to the largest weight *so far*: what comes later has no
    influence, be it by rounding.

    Args:
        features, rotated, value, log_weight: as of `bidirectional_sums`.
        state: what is known of the tokens before these: the tuple that an earlier call returned, or `None`.
        chunk_size: positive integer; it changes speed and memory only.

    Returns:
        Numerators, denominators, and the state after these tokens: a tuple of `(batch, num_heads, features,
        head_dim + 1)`, the sums of the numerator and in the last column those of the denominator, and `(batch,
        num_heads)`, the logarithm of the weight they are relative to.
    """
    batch, num_heads, length, head_dim = ops.shape(value)
    if isinstance(length, int):
        chunk_size = min(chunk_size, length)
    if state is None:
        sums, scale = initial_state(batch, num_heads, features[0].shape[-1], head_dim)
        scale = scale[:1, :1]  # not for each head what is the same for all
    else:
        sums, scale = state

    # from here on (batch, head, chunk, place in the chunk, ...)
    query, key = (_in_chunks(x, chunk_size) for x in features)
    same = rotated[0] is features[0]
    turned_query, turned_key = (
        (query, key) if same else (_in_chunks(x, chunk_size) for x in rotated)
    )
    value = _in_chunks(value, chunk_size)
    log_weight = _in_chunks(log_weight, chunk_size, fill=_NEVER)
    largest = ops.maximum(_running_max(log_weight), scale[..., None, None])
    ends = largest[..., -1]

    # within each chunk
    decay = _decay(log_weight, largest)
    scores = ops.matmul(turned_query, ops.swapaxes(turned_key, -1, -2)) * decay
    plain = scores if same else ops.matmul(query, ops.swapaxes(key, -1, -2)) * decay
    numerator = ops.matmul(scores, value)
    denominator = ops.sum(plain, axis=-1, keepdims=True)

    # what each chunk adds, and the sums before each chunk
    weight = ops.exp(log_weight - ends[..., None])[..., None]
    added = [
        ops.matmul(ops.swapaxes(turned_key, -1, -2), value * weight),
        ops.sum(key * weight, axis=-2)[..., None],
    ]
    added = ops.concatenate([sums[:, :, None], ops.concatenate(added, axis=-1)], axis=2)
    scale = ops.broadcast_to(scale[..., None], ops.shape(ends[..., :1]))
    scale = ops.concatenate([scale, ends], axis=-1)
    before, last = _running_sums(added, scale)
    carried = ops.exp(scale[..., :-1, None] - largest)[..., None]
    # not two slices, whose gradients are slow
    earlier, normalizer = ops.split(before, [head_dim], axis=-1)
    numerator = numerator + ops.matmul(turned_query, earlier) * carried
    denominator = denominator + ops.matmul(query, normalizer) * carried

    state = last, ops.broadcast_to(scale[..., -1], (batch, num_heads))
    return *(_out_of_chunks(x, length) for x in (numerator, denominator)), state


def _running_sums(terms, scale):
    """sum_{j <= i} exp(scale_j - scale_i) terms_j along the axis 2 of `terms`; `scale` never falls.

    Returns:
        The sums but the last, `(batch, num_heads, number - 1, ...)`, and the last, `(batch, num_heads, ...)`.
    """
    batch, num_heads, number, *rest = ops.shape(terms)
    terms = ops.reshape(terms, (batch, num_heads, number, -1))
    if isinstance(number, int) and number <= _FEW:
        weight = _decay(scale, scale)
        parts = [ops.matmul(part, terms) for part in (weight[..., :-1, :], weight[..., -1:, :])]
    else:
        sums = _grouped_sums(terms, scale)
        parts = sums[:, :, :-1], sums[:, :, -1:]
    before, last = (ops.reshape(part, (batch, num_heads, -1, *rest)) for part in parts)
    return before, last[:, :, 0]


def _grouped_sums(terms, scale):
    """All sums of `_running_sums`: within groups of about sqrt(number) terms, and then of groups."""
    number = ops.shape(terms)[2]
    size = _square_root(number)
    terms = _in_chunks(terms, size)
    scale = _in_chunks(scale, size, fill=-_NEVER)
    ends = scale[..., -1]
    within = ops.matmul(_decay(scale, scale), terms)
    groups = ops.matmul(_decay(ends, ends), within[:, :, :, -1])
    before = ops.concatenate([ops.zeros_like(groups[:, :, :1]), groups[:, :, :-1]], axis=2)
    scale_before = ops.concatenate([scale[..., :1, 0], ends[..., :-1]], axis=-1)
    carried = ops.exp(scale_before[..., None] - scale)[..., None]
    return _out_of_chunks(within + carried * before[:, :, :, None], number)


def _decay(log_weight, scale):
    """exp(log_weight_j - scale_i) for j <= i and 0 for later j: (..., length) twice to (..., length, length)."""
    index = ops.arange(ops.shape(scale)[-1])
    difference = log_weight[..., None, :] - scale[..., :, None]
    return ops.exp(ops.where(index[None, :] <= index[:, None], difference, _NEVER))


def _running_max(x):
    """The largest so far over the axes 2 and 3, one after the other, in log2(length) steps; without a gradient."""
    shape = ops.shape(x)
    x = ops.stop_gradient(ops.reshape(x, (*shape[:2], -1)))
    length = ops.shape(x)[-1]
    index = ops.arange(length)

    def widen(window, x):
        return 2 * window, ops.maximum(x, ops.take(x, ops.maximum(index - window, 0), axis=-1))

    _, x = ops.while_loop(lambda window, x: window < length, widen, (1, x))
    return ops.reshape(x, shape)


def _in_chunks(x, size, fill=0.0):
    """(a, b, length, ...) as (a, b, length / size, size, ...), padded at the end."""
    shape = ops.shape(x)
    missing = -shape[2] % size
    if not isinstance(missing, int) or missing:
        others = [[0, 0]] * (len(shape) - 3)
        x = ops.pad(x, [[0, 0], [0, 0], [0, missing], *others], constant_values=fill)
    return ops.reshape(x, (*shape[:2], -1, size, *shape[3:]))


def _out_of_chunks(x, length):
    """The inverse of `_in_chunks`."""
    shape = ops.shape(x)
    x = ops.reshape(x, (*shape[:2], -1, *shape[4:]))
    whole = isinstance(length, int) and x.shape[2] == length
    return x if whole else x[:, :, :length]


def _square_root(number):
    """The square root, rounded up; of an integer or a tensor."""
    if isinstance(number, int):
        return math.isqrt(number - 1) + 1
    return ops.cast(ops.ceil(ops.sqrt(ops.cast(number, "float32"))), "int32")
