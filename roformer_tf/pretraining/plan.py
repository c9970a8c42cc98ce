"""Plans a pretraining run: does it fit, how is a batch split, how long does it take?"""

import dataclasses
import math

from roformer_tf.checks import check_number, check_positive_integer
from roformer_tf.pretraining.model_sizes import ModelSizes, StepMemory
from roformer_tf.pretraining.settings import memory_bytes

# Share of the memory left free for what the arithmetic misses and the device's libraries.
MARGIN = 0.15
# Predicted / measured - 1, lowest and highest, by `python -m benchmarks.pretraining_memory`.
# Memory: the peaks of 27 models on a CPU. Time: steps of a 12 x 768 and a 6 x 384 model on a CPU,
# at the rate that the first sustains.
MEMORY_ERROR = (-0.09, 0.15)
TIME_ERROR = (-0.28, 0.02)
# Operations per second of a V100 at 40 % of its peak, 15.7e12 in float32 and 125e12 on its tensor
# cores.
DEFAULT_FLOPS = {"float32": 6.3e12, "mixed_float16": 50e12, "mixed_bfloat16": 50e12}


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
        ValueError: If not even one sequence of a stage fits, or the replicas cannot share a batch
            evenly.
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


def predicted_positions(data, batch_size, length, most=False):
    """Returns the number of positions of a batch that the head computes.

    Args:
        data: `DataSettings`.
        batch_size: int. Number of sequences.
        length: int. Tokens per sequence.
        most: bool. Whether to return a number that a batch hardly ever exceeds, instead of the
            mean.
    """
    positions = batch_size * length
    if data.objective == "causal_lm":
        return positions
    if data.objective == "unilm":  # the second part of each chunk, split at a random position
        return positions if most else positions // 2
    mean = data.mask_rate * positions
    if not most:
        return round(mean)
    # tokens are chosen one by one, or a whole word at a time
    variance = mean * (1 - data.mask_rate) * (4 if data.whole_word else 1)
    return min(positions, math.ceil(mean + 4 * math.sqrt(variance)))


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
