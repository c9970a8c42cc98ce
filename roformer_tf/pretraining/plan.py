"""What a run needs: memory, micro-batches, steps, tokens and time, before it begins."""

import dataclasses
import math

from roformer_tf.checks import check_number, check_positive_integer
from roformer_tf.pretraining.memory import StepMemory, memory_bytes
from roformer_tf.pretraining.model_sizes import ModelSizes

# Share of the memory that is left free: allocators round sizes up and leave holes, CUDA and its libraries take some of
# their own, and the prediction is good to 15 %.
MARGIN = 0.15
# Operations per second of a V100 at 40 % of its peak, 15.7e12 in float32 and 125e12 on its tensor cores.
DEFAULT_FLOPS = {"float32": 6.3e12, "mixed_float16": 50e12, "mixed_bfloat16": 50e12}


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """What one stage needs.

    Args:
        stage: `Stage`.
        micro_batch_size: rows that a replica computes at once.
        slices: parts into which a replica splits its rows of a step (gradient accumulation).
        memory: `StepMemory` of a replica.
        flops_per_step: multiplications and additions of the matrix products of a step, over all replicas.
        seconds: of the whole stage.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes, Stage, StagePlan, StepMemory
    >>> stage = Stage(max_length=512, global_batch_size=256, steps=1000, learning_rate=1e-5)
    >>> memory = StepMemory.of(ModelSizes(50_000), "adamw", rows=8, length=512, predicted=700)
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
    """What each stage of a run needs.

    Lengths are taken as full: with bucketing, shorter rows take less time and memory.

    Args:
        settings: `PretrainingSettings`.
        replicas: positive integer, number of GPUs.
        memory: str such as `"32GB"` or number of bytes, of one replica; by default `settings.run.memory`.
        flops: number, operations per second that one replica sustains. By default 40 % of a V100's peak,
            `DEFAULT_FLOPS`.
        vocabulary_size: positive integer; by default it is read from the vocabulary.

    Returns:
        List of `StagePlan`.

    Raises:
        ValueError: if not even one row of a stage fits, or the replicas cannot share a batch evenly.
        FileNotFoundError: if there is no such vocabulary or checkpoint.

    Example:

    >>> from roformer_tf.pretraining import PretrainingSettings, plan_run
    >>> settings = PretrainingSettings.from_dict({
    ...     "data": {"files": ["texts/*.txt"]},
    ...     "model": {"vocabulary": "vocab.txt"},
    ...     "stages": [{"max_length": 512, "global_batch_size": 256, "steps": 1000, "learning_rate": 1e-5}],
    ... })
    >>> [plan] = plan_run(settings, replicas=4, memory="32GB", vocabulary_size=50_000)
    >>> plan.micro_batch_size * plan.slices
    64
    """
    check_positive_integer("replicas", replicas)
    if vocabulary_size is not None:
        check_positive_integer("vocabulary_size", vocabulary_size)
    sizes = ModelSizes.from_settings(settings, vocabulary_size)
    memory = settings.run.memory if memory is None else memory
    flops = DEFAULT_FLOPS[sizes.dtype] if flops is None else flops
    check_number("flops", flops, 1.0)
    plans = []
    for index, stage in enumerate(settings.stages):
        if stage.global_batch_size % replicas:
            raise ValueError(
                f"`global_batch_size` of stages[{index}] must be a multiple of the number of replicas, {replicas}. "
                f"Received: global_batch_size={stage.global_batch_size}"
            )
        slices = _slices(settings, sizes, stage, replicas, memory)
        micro_batch = -(-stage.global_batch_size // replicas // slices)
        predicted = predicted_positions(settings.data, stage.global_batch_size, stage.max_length)
        work = sizes.step_flops(
            stage.global_batch_size, stage.max_length, predicted, settings.run.recompute
        )
        plans.append(
            StagePlan(
                stage=stage,
                micro_batch_size=micro_batch,
                slices=slices,
                memory=_memory(settings, sizes, stage, micro_batch, slices),
                flops_per_step=work,
                seconds=work * stage.steps / (flops * replicas),
            )
        )
    return plans


def choose_slices(settings, stage, replicas):
    """Number of slices into which each replica splits its rows of a stage (gradient accumulation).

    With `run.memory` as few as fit, of equal size; else as many as `run.micro_batch_size` asks for; else one.

    Args:
        settings: `PretrainingSettings`.
        stage: `Stage`.
        replicas: positive integer.

    Raises:
        ValueError: if not even one row fits.

    Example:

    >>> from roformer_tf.pretraining import PretrainingSettings
    >>> from roformer_tf.pretraining.plan import choose_slices
    >>> settings = PretrainingSettings.from_dict({
    ...     "data": {"files": ["texts/*.txt"]},
    ...     "model": {"vocabulary": "vocab.txt"},
    ...     "run": {"micro_batch_size": 16},
    ...     "stages": [{"max_length": 512, "global_batch_size": 256, "steps": 1000, "learning_rate": 1e-5}],
    ... })
    >>> choose_slices(settings, settings.stages[0], replicas=4)
    4
    """
    sizes = None if settings.run.memory is None else ModelSizes.from_settings(settings)
    return _slices(settings, sizes, stage, replicas, settings.run.memory)


def predicted_positions(data, rows, length, most=False):
    """Number of positions of a batch that the head computes.

    Args:
        data: `DataSettings`.
        rows, length: positive integers.
        most: whether to give what a batch hardly exceeds, in place of the mean.
    """
    places = rows * length
    if data.objective == "causal_lm":
        return places
    if data.objective == "unilm":  # the second part of each piece, parted at a random place
        return places if most else places // 2
    mean = data.mask_rate * places
    if not most:
        return round(mean)
    # tokens are chosen one by one, or word by word: then a few at once
    variance = mean * (1 - data.mask_rate) * (4 if data.whole_word else 1)
    return min(places, math.ceil(mean + 4 * math.sqrt(variance)))


def _slices(settings, sizes, stage, replicas, memory):
    rows = stage.global_batch_size // replicas
    if memory is None:
        micro_batch_size = settings.run.micro_batch_size
        return 1 if micro_batch_size is None else -(-rows // micro_batch_size)
    room = (1 - MARGIN) * memory_bytes(memory)
    for slices in (n for n in range(1, rows + 1) if rows % n == 0):
        needed = _memory(settings, sizes, stage, rows // slices, slices).peak
        if needed <= room:
            return slices
    mends = [] if settings.run.recompute else ["`run.recompute = true`"]
    if sizes.dtype == "float32":
        mends.append("`model.dtype` of mixed_float16 or mixed_bfloat16")
    if settings.optimizer.name != "adafactor":
        mends.append("`optimizer.name = 'adafactor'`")
    mends += ["shorter rows (`max_length`)", "a smaller model", "more memory"]
    raise ValueError(
        f"Not even one row of {stage.max_length} tokens at a time fits into memory: a step needs "
        f"{needed / 1e9:.3g} GB, and {room / 1e9:.3g} GB is there, with {MARGIN:.0%} left free. It helps: "
        f"{', '.join(mends)}. Received: memory={memory!r}"
    )


def _memory(settings, sizes, stage, rows, slices):
    data = settings.data
    return StepMemory.of(
        sizes,
        settings.optimizer.name,
        rows,
        stage.max_length,
        predicted_positions(data, rows, stage.max_length, most=True),
        slices=slices,
        recompute=settings.run.recompute,
        packed=data.packing == "block_diagonal" or data.objective != "masked_lm",
    )
