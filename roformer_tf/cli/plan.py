"""`python -m roformer_tf plan STAGES.toml`: memory, micro-batches, work, time and cost of a pretraining run."""

import dataclasses


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help="predict the memory and the time of a pretraining run",
        description="Predicts what each stage of a settings file needs: bytes on each GPU, the micro-batch and the "
        "slices of gradient accumulation that fit, steps, tokens, operations, time and GPU-hours. All sequences are "
        "taken to have the full length of their stage.",
    )
    parser.add_argument("settings", help="settings file (TOML) of the command `pretrain`")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: 1)")
    parser.add_argument(
        "--memory",
        help="memory of one GPU, such as 32GB or 16GiB (default: run.memory of the settings file)",
    )
    parser.add_argument(
        "--flops",
        type=float,
        help="operations per second that one GPU sustains in training, such as 15e12 (default: 40%% of a V100's peak, "
        "6.3e12 in float32 and 50e12 in mixed precision)",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=int,
        metavar="N",
        help="number of tokens, instead of reading the vocabulary",
    )
    parser.set_defaults(run=run)


def run(args):
    """Runs the command. Returns 0 if every stage fits."""
    from roformer_tf.pretraining import PretrainingSettings
    from roformer_tf.pretraining.plan import DEFAULT_FLOPS, plan_run

    settings = PretrainingSettings.from_file(args.settings)
    if args.memory is not None:
        changed = dataclasses.replace(settings.run, memory=args.memory, micro_batch_size=None)
        settings = dataclasses.replace(settings, run=changed)
    flops = DEFAULT_FLOPS[settings.model.dtype] if args.flops is None else args.flops
    plans = plan_run(
        settings, replicas=args.gpus, flops=flops, vocabulary_size=args.vocabulary_size
    )
    _print_tables(plans, args.gpus)
    _print_notes(settings.run.memory, flops, args)
    return 0


def _print_tables(plans, gpus):
    parts = ("parameters", "optimizer", "gradients", "activations", "logits", "peak")
    memory = _table("Bytes on each GPU", "stage", "length", "micro-batch", "slices", *parts)
    columns = ("length", "batch", "steps", "tokens", "FLOP/step", "time", "GPU-hours")
    work = _table("Work of all GPUs", "stage", *columns)
    for number, plan in enumerate(plans, 1):
        stage, length = plan.stage, str(plan.stage.max_length)
        sizes = [_bytes(getattr(plan.memory, part)) for part in parts]
        memory.add_row(str(number), length, str(plan.micro_batch_size), str(plan.slices), *sizes)
        work.add_row(
            *(str(number), length, str(stage.global_batch_size), f"{stage.steps:,}"),
            *(f"{stage.positions / 1e9:,.3g} G", f"{plan.flops_per_step:.3e}"),
            *_time_and_cost(plan.seconds, gpus),
            end_section=number == len(plans),
        )
    steps = sum(plan.stage.steps for plan in plans)
    positions = sum(plan.stage.positions for plan in plans)
    cost = _time_and_cost(sum(plan.seconds for plan in plans), gpus)
    work.add_row("all", "", "", f"{steps:,}", f"{positions / 1e9:,.3g} G", "", *cost)
    _print(memory)
    _print(work)


def _print_notes(memory, flops, args):
    from roformer_tf.pretraining.plan import MARGIN, MEMORY_ERROR, TIME_ERROR

    if memory is None:
        print("Fits? No memory is given (--memory): micro-batches are those of the settings file.")
    else:
        print(f"Fits: every stage, into {memory} on each GPU, of which {MARGIN:.0%} is left free.")
    low, high = MEMORY_ERROR
    print(f"Memory: {low:+.0%} to {high:+.0%}, against the measured peaks of 27 models on a CPU.")
    low, high = TIME_ERROR
    print(
        f"Time: at {flops:.3g} operations/s on each of {args.gpus} GPU(s){'' if args.flops else ' (default)'}. Given "
        f"the right rate, {low:+.0%} to {high:+.0%}, against measured steps of two models on a CPU."
    )


def _table(title, *columns):
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _print(table):
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # whole lines for files and pipes
        console = Console(highlight=False, width=140)
    console.print(table)


def _bytes(number):
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.2f} MB"


def _time_and_cost(seconds, gpus):
    if seconds >= 2 * 86400:
        time = f"{seconds / 86400:.1f} days"
    elif seconds >= 2 * 3600:
        time = f"{seconds / 3600:.1f} h"
    else:
        time = f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
    return time, f"{seconds * gpus / 3600:,.2f}"
