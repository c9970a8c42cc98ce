"""Predicts what each stage of a settings file needs: bytes on each GPU, the micro-batch and the
slices of gradient accumulation that fit, steps, tokens, operations, time and GPU-hours. All
sequences are taken to have the full length of their stage, and all steps of `train-tasks` to train
the masked LM.
"""

import dataclasses

HELP = "predict the memory and the time of a pretraining run"


def add_arguments(parser):
    parser.add_argument("settings", help="settings file (TOML) of `pretrain` or `train-tasks`")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: 1)")
    parser.add_argument(
        "--memory",
        help="memory of one GPU, such as 32GB or 16GiB (default: run.memory of the settings file)",
    )
    parser.add_argument(
        "--flops",
        type=float,
        help="operations per second that one GPU sustains in training, such as 15e12 (default: "
        "40%% of a V100's peak, 6.3e12 in float32 and 50e12 in mixed precision)",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=int,
        metavar="N",
        help="number of tokens, instead of reading the vocabulary",
    )


def run(args):
    from roformer_tf.pretraining.multi_task_settings import settings_class
    from roformer_tf.pretraining.plan import DEFAULT_FLOPS, plan_run

    settings = settings_class(args.settings).from_file(args.settings)
    if args.memory is not None:
        changed = dataclasses.replace(settings.run, memory=args.memory, micro_batch_size=None)
        settings = dataclasses.replace(settings, run=changed)
    flops = DEFAULT_FLOPS[settings.model.dtype] if args.flops is None else args.flops
    plans = plan_run(
        settings, replicas=args.gpus, flops=flops, vocabulary_size=args.vocabulary_size
    )
    _print_memory(plans)
    _print_work(plans, args.gpus)
    _print_notes(settings.run.memory, flops, args)


def _print_memory(plans):
    parts = ("parameters", "optimizer", "gradients", "activations", "logits", "peak")
    rows = []
    for number, plan in enumerate(plans, 1):
        sizes = [_bytes(getattr(plan.memory, part)) for part in parts]
        rows.append((number, plan.stage.max_length, plan.micro_batch_size, plan.slices, *sizes))
    columns = ("stage", "length", "micro-batch", "slices", *parts)
    _print_table("Bytes on each GPU", columns, rows)


def _print_work(plans, gpus):
    def work(steps, positions, flops_per_step, seconds):
        time_and_cost = _time(seconds), f"{seconds * gpus / 3600:,.2f}"
        return f"{steps:,}", f"{positions / 1e9:,.3g} G", flops_per_step, *time_and_cost

    rows = []
    for number, plan in enumerate(plans, 1):
        stage, flops = plan.stage, f"{plan.flops_per_step:.3e}"
        cells = work(stage.steps, stage.positions, flops, plan.seconds)
        rows.append((number, stage.max_length, stage.global_batch_size, *cells))
    total_steps = sum(plan.stage.steps for plan in plans)
    total_positions = sum(plan.stage.positions for plan in plans)
    total_seconds = sum(plan.seconds for plan in plans)
    total = ("all", "", "", *work(total_steps, total_positions, "", total_seconds))
    columns = ("stage", "length", "batch", "steps", "tokens", "FLOP/step", "time", "GPU-hours")
    _print_table("Work of all GPUs", columns, rows, total)


def _print_notes(memory, flops, args):
    from roformer_tf.pretraining.plan import MARGIN, MEMORY_ERROR, TIME_ERROR

    if memory is None:
        print("Fits? No memory is given (--memory): micro-batches are those of the settings file.")
    else:
        print(f"Fits: every stage, into {memory} on each GPU, of which {MARGIN:.0%} is left free.")
    low, high = MEMORY_ERROR
    print(f"Memory: {low:+.0%} to {high:+.0%}, against the measured peaks of 30 models on a CPU.")
    low, high = TIME_ERROR
    rate = f"{flops:.3g} operations/s on each of {args.gpus} GPU(s)"
    rate += "" if args.flops else " (default)"
    print(
        f"Time: at {rate}. Given the right rate, {low:+.0%} to {high:+.0%}, against measured steps "
        "of two models on a CPU."
    )


def _print_table(title, columns, rows, total=None):
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    if total is not None:
        table.add_section()
        table.add_row(*total)
    console = Console(highlight=False)
    if not console.is_terminal:  # whole lines for files and pipes
        console = Console(highlight=False, width=140)
    console.print(table)


def _bytes(number):
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.2f} MB"


def _time(seconds):
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
