"""Plans a pretraining run by one page of arithmetic: memory, micro-batches, work and time.

For a model with N weights:

    weights, gradients      4 N bytes each, and as much for each slot of the optimizer
    activations             per block some tensors as wide as the model, and the attention scores
    logits                  predicted positions x vocabulary, and their gradient
    work                    6 N operations for each token, plus those of the attention scores

It knows nothing of allocators and kernels: `MEMORY_ERROR` and `TIME_ERROR` say how far it is off.

Reference: section 2 of Kaplan et al., arXiv 2001.08361, with attention and vocabulary counted.
"""

import dataclasses
import functools
import math
from types import SimpleNamespace

import keras
import tensorflow as tf

from roformer_tf.checkpoint import open_folder
from roformer_tf.checkpoint.vocabulary import Vocabulary
from roformer_tf.checks import check_number, check_one_of, check_positive_integer
from roformer_tf.layers.position_schemes import make_position_schemes
from roformer_tf.pretraining.models import check_packing
from roformer_tf.pretraining.objective import predicted_positions
from roformer_tf.pretraining.settings import OPTIMIZERS, ModelSettings, memory_bytes

# Share of the memory left free for what the arithmetic misses and the device's libraries.
MARGIN = 0.15
# Predicted / measured - 1, lowest and highest, by `python -m benchmarks.pretraining_memory`.
# Memory: peaks of 30 models on a CPU. Time: steps of a 12 x 768 and a 6 x 384 model on a CPU,
# at the rate that the first sustains.
MEMORY_ERROR = (-0.10, 0.18)
TIME_ERROR = (-0.34, 0.03)
# Operations per second of a V100 at 40 % of its peak, 15.7e12 in float32 and 125e12 on its tensor
# cores.
DEFAULT_FLOPS = {"float32": 6.3e12, "mixed_float16": 50e12, "mixed_bfloat16": 50e12}
_FLOAT = 4  # bytes
# Tensors that live for a moment, and sizes rounded up: the mean over the measurements.
_OVERHEAD = 1.06


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """The sizes of a language model that its memory and its work depend on.

    Args:
        vocabulary_size: int. Number of tokens in the vocabulary.
        num_layers, num_heads, hidden_dim, intermediate_dim, embedding_dim, num_segments: See
            `RoFormerBackbone`.
        dropout, attention_dropout, activation, norm, dtype: See `RoFormerBackbone`.
        position_scheme, position_options, max_sequence_length: See `RoFormerBackbone`.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes
    >>> sizes = ModelSizes(vocabulary_size=50_000)
    >>> sizes.num_parameters, sizes.forward_flops(batch_size=1, length=512, num_predicted=77)
    (124099664, 98536022016)
    """

    vocabulary_size: int
    num_layers: int = ModelSettings.num_layers
    num_heads: int = ModelSettings.num_heads
    hidden_dim: int = ModelSettings.hidden_dim
    intermediate_dim: int = ModelSettings.intermediate_dim
    embedding_dim: int | None = ModelSettings.embedding_dim
    num_segments: int = 2
    dropout: float = ModelSettings.dropout
    attention_dropout: float = ModelSettings.attention_dropout
    activation: str = ModelSettings.activation
    norm: str = ModelSettings.norm
    position_scheme: str = ModelSettings.position_scheme
    position_options: dict | None = dataclasses.field(default=None, hash=False)
    max_sequence_length: int = 512
    dtype: str = ModelSettings.dtype

    def __post_init__(self):
        if self.embedding_dim is None:
            object.__setattr__(self, "embedding_dim", self.hidden_dim)

    @classmethod
    def from_settings(cls, settings, vocabulary_size=None):
        """Returns the sizes of the model that `PretrainingSettings` describe.

        Args:
            settings: `PretrainingSettings`.
            vocabulary_size: int. Used instead of reading the vocabulary of a new model.

        Raises:
            FileNotFoundError: If the vocabulary or the checkpoint does not exist.
        """
        model = settings.model
        if model.checkpoint is None:
            if vocabulary_size is None:
                vocabulary_size = Vocabulary(model.vocabulary).size
            arguments = {
                **dataclasses.asdict(model),
                "vocabulary_size": vocabulary_size,
                "max_sequence_length": model.max_sequence_length or settings.max_length,
            }
        else:
            arguments = {**open_folder(model.checkpoint).backbone_arguments(), "dtype": model.dtype}
            check_packing(settings.data.packing, arguments.get("attention", "softmax"))
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: value for name, value in arguments.items() if name in names})

    @property
    def has_biases(self):
        """Whether norms have weights and dense layers have biases: v1, unlike v2."""
        return self.norm == "layer_norm"

    @property
    def compute_bytes(self):
        """Bytes of a number in the compute dtype."""
        return _FLOAT if self.dtype == "float32" else 2

    @property
    def weight_shapes(self):
        """List of the shapes of all weights."""
        width, inner, embedding = self.hidden_dim, self.intermediate_dim, self.embedding_dim
        scheme, copies = _position_scheme(self)
        # the embeddings, and a projection to the width of the blocks and back
        shapes = [(self.vocabulary_size, embedding)]
        shapes += [(self.num_segments, embedding)] if self.num_segments else []
        shapes += copies * [tuple(weight.shape) for weight in scheme.weights]
        shapes += [(embedding, width)] if embedding != width else []
        shapes += [(width, embedding)] if embedding != width or self.has_biases else []
        block = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        if self.has_biases:
            block += [(3 * width,), (width,), (inner,), (width,)]  # biases
            block += 4 * [(width,)]  # two norms
            shapes += 2 * [(embedding,)]  # norm of the embeddings
            shapes += [(width,)] if embedding != width else []
            shapes += [(embedding,), (embedding,), (embedding,), (self.vocabulary_size,)]  # head
        return shapes + self.num_layers * block

    @property
    def num_parameters(self):
        """Number of weights."""
        return sum(map(math.prod, self.weight_shapes))

    # === Work: multiplications and additions of the matrix products ===

    def block_flops(self, batch_size, length, num_predicted):
        """Operations of all encoder blocks in a forward pass, without the position scheme's.

        The last feed-forward network runs at the predicted positions alone.
        """
        tokens = batch_size * length
        # projections, scores, and averages of values
        attention = tokens * (4 * self.hidden_dim**2 + 2 * length * self.hidden_dim)
        runs = (self.num_layers - 1) * tokens + num_predicted
        feed_forward = runs * 2 * self.hidden_dim * self.intermediate_dim
        return 2 * (self.num_layers * attention + feed_forward)

    def forward_flops(self, batch_size, length, num_predicted):
        """Operations of a forward pass.

        Args:
            batch_size: int. Number of sequences.
            length: int. Tokens per sequence.
            num_predicted: int. Number of positions that the head computes, over the whole batch.
        """
        in_blocks, once, _ = self._position_flops(batch_size, length)
        factorised = self.embedding_dim != self.hidden_dim
        projection = self.embedding_dim * self.hidden_dim
        embedding = factorised * batch_size * length * projection
        head = self.embedding_dim * self.vocabulary_size
        head += (self.has_biases or factorised) * projection
        others = in_blocks + once + 2 * (num_predicted * head + embedding)
        return self.block_flops(batch_size, length, num_predicted) + others

    def step_flops(self, batch_size, length, num_predicted, recompute=False):
        """Operations of a training step; the backward pass takes twice those of the forward pass.

        Args:
            batch_size, length, num_predicted: See `forward_flops`.
            recompute: bool. Whether the blocks are computed again for the gradient.
        """
        in_blocks, _, constant = self._position_flops(batch_size, length)
        flops = 3 * self.forward_flops(batch_size, length, num_predicted) - constant
        if recompute:
            flops += self.block_flops(batch_size, length, num_predicted) + in_blocks
        return flops

    def _position_flops(self, batch_size, length):
        """Forward operations of the position scheme: in all blocks, once a batch, on constants."""
        name, width, layers = self.position_scheme, self.hidden_dim, self.num_layers
        if name == "tupe":
            return 0, 2 * 2 * length * width**2 + 2 * length**2 * width, 0
        scheme, _ = _position_scheme(self)
        # that each query is multiplied with
        distances = 2 * min(getattr(scheme, "max_distance", length), length - 1) + 1
        scores = 2 * batch_size * length * distances * width
        projection = 2 * distances * width**2
        if name == "sinusoidal_relative":
            return 2 * layers * scores, 0, 2 * layers * scores
        if name == "relative":
            return (2 if scheme.on_values else 1) * layers * scores, 0, 0
        if name == "transformer_xl":
            return layers * (scores + projection), 0, layers * projection
        if name == "deberta":
            return layers * (2 * scores + 3 * projection), 0, 0
        return 0, 0, 0

    # === Memory ===

    def optimizer_bytes(self, optimizer):
        """Bytes of the slots of an optimizer, a name such as `"adamw"`; see `step_memory`."""
        check_one_of("optimizer", optimizer, OPTIMIZERS)
        if optimizer != "adafactor":
            return 2 * _FLOAT * self.num_parameters
        means = sum(sum(shape) for shape in self.weight_shapes if len(shape) > 1)
        return _FLOAT * (self.num_parameters + means)  # over rows and over columns

    def step_memory(
        self,
        optimizer,
        batch_size,
        length,
        num_predicted,
        slices=1,
        recompute=False,
        packed=False,
    ):
        """Returns the `StepMemory` of one replica.

        Args:
            optimizer: str. Name of the optimizer, as in `OptimizerSettings`.
            batch_size: int. Sequences computed at once: those of one slice.
            length: int. Tokens per sequence.
            num_predicted: int. Number of positions of the slice that the head computes.
            slices: int. Number of slices of a step (gradient accumulation).
            recompute: bool. Whether only the inputs of blocks are kept for the gradient.
            packed: bool. Whether each pair of positions has a mask of its own (packed documents,
                causal, UniLM).
        """
        compute, width, tokens = self.compute_bytes, self.hidden_dim, batch_size * length
        weights, slots = _FLOAT * self.num_parameters, self.optimizer_bytes(optimizer)
        table = _FLOAT * self.vocabulary_size * self.embedding_dim
        scores = batch_size * self.num_heads * length**2
        hidden, inner = compute * tokens * width, compute * tokens * self.intermediate_dim
        mixed = compute != _FLOAT

        # kept of a feed-forward network or attention: its output, the norm in float32, the dropout
        common = hidden + _FLOAT * tokens * width * (2 if self.has_biases else 1)
        common += tokens * width if self.dropout else 0
        feed_forward = common
        feed_forward += inner * {"gelu": 4, "gelu_tanh": 5, "relu": 1}.get(self.activation, 2)
        # projections (3), rotated queries and keys (2), averages (1)
        attention = common + 6 * hidden
        attention += _FLOAT * scores  # softmax, float32
        attention += compute * scores if self.attention_dropout or mixed else 0
        attention += scores if self.attention_dropout else 0  # which ones were kept, a byte each
        runs = self.num_layers - 1 + num_predicted / tokens
        kept = self.num_layers * attention + runs * feed_forward
        if recompute:
            kept = self.num_layers * hidden + attention + min(runs, 1) * feed_forward
        mask = _FLOAT * batch_size * length**2 if packed else 0
        cast_weights = compute * self.num_parameters if mixed else 0
        activations = hidden + kept + mask + cast_weights
        logits = num_predicted * self.vocabulary_size * (2 * _FLOAT + (compute if mixed else 0))
        # gradients of the scores, and of those by distance, which are twice as many
        copies = {"deberta": 5, "relative": 3, "sinusoidal_relative": 3, "transformer_xl": 3}
        widest = max(inner, _FLOAT * scores * copies.get(self.position_scheme, 1))
        accumulated = weights + table if slices > 1 else 0
        gradients = 0 if accumulated else weights
        # these formulas make one more tensor of each weight's size, and LAMB's several of a weight
        # at once, which counts for the widest
        formula = weights if optimizer in ("lamb", "original_lamb", "adafactor") else 0
        if optimizer in ("lamb", "original_lamb"):
            formula = max(formula, 4 * table)
        peak = max(
            # the backward pass starts: gradients of the logits and the table
            activations + logits + 2 * table,
            # it reaches the widest tensor of the last block
            activations + table + widest,
            # it ends: the table's gradients from the logits and the embeddings, and their sum
            gradients + 3 * table,
            # the update
            gradients + formula,
        )
        return StepMemory(
            parameters=weights,
            optimizer=slots,
            gradients=weights + accumulated,
            activations=activations,
            logits=logits,
            peak=round(_OVERHEAD * (weights + slots + accumulated + peak)),
        )


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes that one replica needs in a training step.

    Args:
        parameters: int. Bytes of the weights, float32.
        optimizer: int. Bytes of the optimizer's slots.
        gradients: int. Bytes of the gradients, and of their sum over the slices if there are
            several.
        activations: int. Bytes kept for the gradient of one slice, without the head.
        logits: int. Bytes of the logits and their gradient.
        peak: int. The most bytes in use at once. Not the sum: activations are freed while gradients
            are computed.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes
    >>> sizes = ModelSizes(vocabulary_size=50_000)
    >>> memory = sizes.step_memory("adamw", batch_size=8, length=512, num_predicted=616)
    >>> round(memory.parameters / 1e9, 2), round(memory.peak / 1e9, 1)
    (0.5, 9.4)
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    peak: int


@functools.lru_cache(maxsize=8)
def _position_scheme(sizes):
    """Returns the position scheme of a model, and how many of them it has."""
    backbone_sizes = SimpleNamespace(
        head_dim=sizes.hidden_dim // sizes.num_heads,
        num_heads=sizes.num_heads,
        hidden_dim=sizes.hidden_dim,
        embedding_dim=sizes.embedding_dim,
        max_sequence_length=sizes.max_sequence_length,
        max_wavelength=10000.0,
        masking="bidirectional",
        # draws no random numbers, so that a model made after a plan starts with the same weights as
        # without it
        initializer=keras.initializers.Zeros(),
    )
    with tf.device("CPU:0"):
        [scheme] = make_position_schemes(
            sizes.position_scheme, 1, backbone_sizes, sizes.position_options
        )
        scheme.build()
    return scheme, sizes.num_layers if scheme.per_layer else 1


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """What one stage of a run needs.

    Args:
        stage: `Stage`.
        micro_batch_size: int. Sequences that a replica computes at once.
        slices: int. Number of parts of a replica's share of a batch (gradient accumulation).
        memory: `StepMemory` of a replica.
        flops_per_step: int. Operations of a step, over all replicas.
        seconds: float. Time of the whole stage.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes, Stage, StagePlan
    >>> stage = Stage(max_length=512, global_batch_size=256, steps=1000, learning_rate=1e-5)
    >>> memory = ModelSizes(50_000).step_memory("adamw", 8, 512, num_predicted=700, slices=32)
    >>> StagePlan(stage, 8, 32, memory, flops_per_step=10**14, seconds=2e4).slices
    32
    """

    stage: object
    micro_batch_size: int
    slices: int
    memory: StepMemory
    flops_per_step: int
    seconds: float


def plan_run(settings, replicas=1, memory=None, flops=None, vocabulary_size=None):
    """Predicts memory, micro-batches, work and time of each stage of a run.

    All sequences are taken to have `max_length` tokens. With bucketing, shorter ones take less time
    and memory.

    Args:
        settings: `PretrainingSettings`.
        replicas: int. Number of GPUs.
        memory: str such as `"32GB"`, or number of bytes. Memory of one replica. Defaults to
            `settings.run.memory`.
        flops: float. Operations per second that one replica sustains. Defaults to `DEFAULT_FLOPS`,
            40 % of a V100's peak.
        vocabulary_size: int. Used instead of reading the vocabulary.

    Returns:
        List of `StagePlan`.

    Raises:
        ValueError: If not even one sequence of a stage fits, the replicas cannot share a batch
            evenly, the model has learned positions and too few of them for a stage, or packed
            documents and linear attention.
        FileNotFoundError: If the vocabulary or the checkpoint does not exist.

    Example:

    >>> from roformer_tf.pretraining import PretrainingSettings, plan_run
    >>> settings = PretrainingSettings.from_dict({
    ...     "data": {"files": ["texts/*.txt"]},
    ...     "model": {"vocabulary": "vocab.txt"},
    ...     "stages": [
    ...         {"max_length": 512, "global_batch_size": 256, "steps": 1000, "learning_rate": 1e-5}
    ...     ],
    ... })
    >>> [plan] = plan_run(settings, replicas=4, memory="32GB", vocabulary_size=50_000)
    >>> plan.micro_batch_size * plan.slices
    64
    """
    check_positive_integer("replicas", replicas)
    check_positive_integer("vocabulary_size", vocabulary_size, optional=True)
    sizes = ModelSizes.from_settings(settings, vocabulary_size)
    _check_positions(sizes, settings.stages)
    memory = settings.run.memory if memory is None else memory
    flops = DEFAULT_FLOPS[sizes.dtype] if flops is None else flops
    check_number("flops", flops, 1.0)
    plans = []
    for index, stage in enumerate(settings.stages):
        if stage.global_batch_size % replicas:
            raise ValueError(
                f"`global_batch_size` of stages[{index}] must be a multiple of the number of "
                f"replicas, {replicas}. Received: global_batch_size={stage.global_batch_size}"
            )
        slices = _find_slices(settings, sizes, stage, replicas, memory)
        micro_batch_size = -(-stage.global_batch_size // replicas // slices)
        shape = stage.global_batch_size, stage.max_length
        predicted = predicted_positions(settings.data, *shape)
        work = sizes.step_flops(*shape, predicted, settings.run.recompute)
        plans.append(
            StagePlan(
                stage=stage,
                micro_batch_size=micro_batch_size,
                slices=slices,
                memory=_step_memory(settings, sizes, stage, micro_batch_size, slices),
                flops_per_step=work,
                seconds=work * stage.steps / (flops * replicas),
            )
        )
    return plans


def _check_positions(sizes, stages):
    """Raises `ValueError` if a stage has longer sequences than the model has learned positions."""
    most = getattr(_position_scheme(sizes)[0], "max_sequence_length", None)
    for index, stage in enumerate(stages):
        if most is not None and stage.max_length > most:
            raise ValueError(
                f"`max_length` of stages[{index}] must not exceed the learned positions of the "
                f"model, {most} (`max_sequence_length`). Received: max_length={stage.max_length}. "
                "Shorten the stage. A new model has positions for all stages if "
                "`max_sequence_length` is left out"
            )


def _find_slices(settings, sizes, stage, replicas, memory):
    share = stage.global_batch_size // replicas
    if memory is None:
        micro_batch_size = settings.run.micro_batch_size
        return 1 if micro_batch_size is None else -(-share // micro_batch_size)
    room = (1 - MARGIN) * memory_bytes(memory)
    for slices in (n for n in range(1, share + 1) if share % n == 0):
        needed = _step_memory(settings, sizes, stage, share // slices, slices).peak
        if needed <= room:
            return slices
    remedies = [] if settings.run.recompute else ["`run.recompute = true`"]
    if sizes.dtype == "float32":
        remedies.append("`model.dtype` of mixed_float16 or mixed_bfloat16")
    if settings.optimizer.name != "adafactor":
        remedies.append("`optimizer.name = 'adafactor'`")
    remedies += ["shorter sequences (`max_length`)", "a smaller model", "more memory"]
    raise ValueError(
        f"Not even one sequence of {stage.max_length} tokens fits into memory: a step needs "
        f"{needed / 1e9:.3g} GB, but only {room / 1e9:.3g} GB can be used, as {MARGIN:.0%} is "
        "left free. To fix it, use "
        f"{', '.join(remedies[:-1])} or {remedies[-1]}. Received: memory={memory!r}"
    )


def _step_memory(settings, sizes, stage, batch_size, slices):
    data = settings.data
    return sizes.step_memory(
        settings.optimizer.name,
        batch_size,
        stage.max_length,
        predicted_positions(data, batch_size, stage.max_length, most=True),
        slices=slices,
        recompute=settings.run.recompute,
        packed=data.packing == "block_diagonal" or data.objective != "masked_lm",
    )
