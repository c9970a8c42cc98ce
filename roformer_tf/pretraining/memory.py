"""How many bytes a training step needs, from the tensors that TensorFlow keeps for the gradient."""

import dataclasses
import re

from roformer_tf.pretraining.position_costs import has_values, num_distances

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FLOAT = 4
_OPTIMIZER_SLOTS = {"adamw": 2, "original_adamw": 2, "lamb": 2, "adafactor": 1}
# Tensors as large as the largest weight that an optimizer has at once, beside weights, state and gradients: Keras'
# formulas run operation by operation, on several weights at a time: together at least as much as all weights. Ours is
# one kernel. Measured, see `benchmarks/pretraining_memory.py`.
_OPTIMIZER_TRANSIENTS = {"adamw": 1, "original_adamw": 1, "lamb": 3, "adafactor": 4}
# Gradients of the widest tensor of a block that are in memory at once. Measured.
_FEED_FORWARD_TRANSIENTS = 2
_SCORE_TRANSIENTS = 2
# TensorFlow's allocator gives blocks larger than asked for. Measured, the mean of all cases.
_ROUNDING = 1.05


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of one replica in a training step.

    Args:
        parameters: of the weights, float32.
        optimizer: of the optimizer's state.
        gradients: of the gradients, and of their sum where there are several slices.
        activations: of what is kept for the gradient of one slice, without the head.
        logits: of the logits and their gradient.
        peak: of the most that is in use at once. Less than the sum, as not all of it is there at the same time, or
            more, by what operations need for a moment.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes, StepMemory
    >>> memory = StepMemory.of(ModelSizes(50_000), "adamw", rows=8, length=512, predicted=616)
    >>> round(memory.parameters / 1e9, 2), round(memory.peak / 1e9, 1)
    (0.5, 9.4)
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    peak: int

    @classmethod
    def of(
        cls,
        sizes,
        optimizer,
        rows,
        length,
        predicted,
        slices=1,
        recompute=False,
        packed=False,
    ):
        """The memory of a step.

        Args:
            sizes: `ModelSizes`.
            optimizer: `"adamw"`, `"original_adamw"`, `"lamb"` or `"adafactor"`.
            rows: positive integer, of one slice on one replica.
            length: positive integer, places of a row.
            predicted: number of positions of the slice that the head computes.
            slices: positive integer.
            recompute: whether only the inputs of blocks are kept.
            packed: whether attention has a mask for each pair of places (packed documents, causal, UniLM).
        """
        parts = _Parts(sizes, rows, length, predicted, packed)
        parameters = _FLOAT * sizes.num_parameters
        state = optimizer_bytes(sizes, optimizer)
        table = _FLOAT * sizes.vocabulary_size * sizes.embedding_dim
        # measured: in the loop over slices the sum for the table is there twice
        accumulator = parameters + table if slices > 1 else 0
        layers, blocks = sizes.num_layers, parts.block
        kept = layers * (parts.block_input if recompute else blocks)
        below = parts.inputs + kept + parts.cast_weights(recompute)
        # one block's backward pass; its activations are in `kept` already unless they are computed again
        block = parts.transients + (blocks if recompute else 0)
        summed = 0 if slices > 1 else parameters  # where the gradients of a slice are until it ends
        moments = [
            # the loss and its gradient
            below + parts.head + parts.logits,
            # gradient of the head's product with the table, transposed
            below + parts.head + parts.logits_gradient + 2 * table,
            # the last block, and the first: by then all other gradients are there
            below + table + block,
            below - kept + parts.block_input + table + max(summed - table, 0) + block,
            # gradient of the look-up, and the sum of the two gradients of the table
            parts.inputs + max(summed, table) + table,
        ]
        update = max(_FLOAT * _product(shape) for shape in sizes.weight_shapes)
        update *= _OPTIMIZER_TRANSIENTS[optimizer]
        if optimizer in ("lamb", "adafactor"):
            update = max(update, parameters)
        moments.append(summed + update)
        return cls(
            parameters=parameters,
            optimizer=state,
            gradients=parameters + accumulator,
            activations=below + (blocks if recompute else 0),
            logits=parts.logits,
            peak=round(_ROUNDING * (parameters + state + accumulator + max(moments))),
        )


def memory_bytes(memory):
    """Number of bytes of an amount of memory.

    Args:
        memory: str such as `"32GB"` (10^9 bytes each) or `"16GiB"` (2^30 each), or a number of bytes.

    Raises:
        ValueError: if it is no amount of memory.

    >>> memory_bytes("32GB"), memory_bytes("1.5 GiB")
    (32000000000, 1610612736)
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(i?)B?", str(memory).strip(), re.IGNORECASE)
    size = 0
    if match and not (match[3] and not match[2]):
        unit = (_BINARY_UNITS if match[3] else _UNITS)[match[2].upper()]
        size = int(float(match[1]) * unit)
    if size <= 0 or isinstance(memory, bool):
        raise ValueError(
            f"`memory` must be an amount such as '32GB' or '16GiB'. Received: memory={memory!r}"
        )
    return size


def optimizer_bytes(sizes, optimizer):
    """Bytes of an optimizer's state."""
    total = _OPTIMIZER_SLOTS[optimizer] * sizes.num_parameters
    if optimizer == "adafactor":  # means over rows and over columns
        total += sum(sum(shape) for shape in sizes.weight_shapes if len(shape) > 1)
    return _FLOAT * total


class _Parts:
    """Bytes of the tensors of one slice, float32 where they are computed so under every dtype policy."""

    def __init__(self, sizes, rows, length, predicted, packed):
        self.sizes = sizes
        self.compute = compute = sizes.compute_bytes
        tokens = rows * length
        width, self.tokens = sizes.hidden_dim, tokens
        scores = rows * sizes.num_heads * length**2
        weights = sizes.has_weights_in_norms

        def norm(numbers):
            # its input, and with weights the product of scale and deviation
            return _FLOAT * numbers * (2 if weights else 1)

        # attention: values (a view of the projection, which stays whole), rotated queries and keys, averages
        attention = compute * tokens * width * (3 + self._position_copies() + 1)
        attention += _FLOAT * scores  # softmax
        if sizes.attention_dropout:
            attention += scores * (1 + compute)  # what is kept (bool), and the result
        elif compute != _FLOAT:
            attention += scores * compute
        dropped = tokens * width if sizes.dropout else 0  # bool
        gelu = {"gelu": 4, "gelu_tanh": 5, "relu": 1}.get(sizes.activation, 2)
        feed_forward = compute * tokens * sizes.intermediate_dim * gelu
        outputs = 2 * compute * tokens * width
        attention += self._kept_of_positions(rows, length)
        self.block = attention + feed_forward + outputs + 2 * (dropped + norm(tokens * width))
        self.block_input = compute * tokens * width
        mask = _FLOAT * rows * length**2 if packed else 0
        embedded = tokens * sizes.embedding_dim
        self.inputs = (
            norm(embedded)
            + (embedded if sizes.dropout else 0)
            + self.block_input
            + (compute * embedded if sizes.embedding_dim != width else 0)
            + mask
        )
        transformed = predicted * sizes.embedding_dim
        self.head = compute * predicted * width + compute * transformed
        if weights:
            self.head += gelu * compute * transformed + norm(transformed)
        numbers = predicted * sizes.vocabulary_size
        self.logits = numbers * (2 * _FLOAT + (compute if compute != _FLOAT else 0))
        self.logits_gradient = numbers * (_FLOAT + (compute if compute != _FLOAT else 0))
        self.transients = max(
            _FEED_FORWARD_TRANSIENTS * compute * tokens * sizes.intermediate_dim,
            _SCORE_TRANSIENTS * _FLOAT * scores - feed_forward - norm(tokens * width),
        )

    def _position_copies(self):
        """Tensors as large as the queries that the position scheme makes of queries and keys."""
        if self.sizes.position_scheme == "rotary":
            return 2 + (
                self.compute != _FLOAT
            )  # queries are scaled before the product below float32
        if self.sizes.position_scheme == "transformer_xl":
            return 2  # one with each of its vectors
        learned = self.sizes.position_scheme in ("relative", "deberta")
        return int(self.compute != _FLOAT or learned)

    def _kept_of_positions(self, rows, length):
        """Weights summed by distance, for the gradient of a table that is averaged like values."""
        if not has_values(self.sizes):
            return 0
        distances = num_distances(self.sizes, length)
        return self.compute * rows * self.sizes.num_heads * length * distances

    def cast_weights(self, recompute):
        """Matrices in the compute dtype; those of the blocks go with them when they are computed again."""
        if self.compute == _FLOAT:
            return 0
        sizes = self.sizes
        block = sizes.hidden_dim * (4 * sizes.hidden_dim + 2 * sizes.intermediate_dim)
        layers = 1 if recompute else sizes.num_layers
        table = sizes.vocabulary_size * sizes.embedding_dim
        return self.compute * (layers * block + table)


def _product(shape):
    product = 1
    for size in shape:
        product *= size
    return product
