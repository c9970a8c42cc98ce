"""`python -m roformer_tf plan STAGES.toml`: memory, micro-batches, work and time of a pretraining run."""

import dataclasses


def add_parser(subparsers):
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help="say what memory and time a pretraining run needs",
        description="Says for each stage of a settings file what it needs: bytes on each GPU, the micro-batch and the "
        "gradient accumulation, steps, tokens, operations, and the time at a given rate. Lengths are taken as full.",
    )
    parser.add_argument("settings", help="settings file (TOML) of the command `pretrain`")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (1)")
    parser.add_argument(
        "--memory", help="of one GPU, such as 32GB or 16GiB; default: run.memory of the file"
    )
    parser.add_argument(
        "--flops",
        type=float,
        help="operations per second that one GPU sustains in training, such as 15e12; default: 40 %% of a V100's peak, "
        "6.3e12 in float32 and 50e12 in mixed precision",
    )
    parser.add_argument(
        "--vocabulary-size", type=int, metavar="N", help="in place of reading the vocabulary"
    )
    parser.set_defaults(run=run)


def run(args):
    """Runs the command; 0 when every stage fits."""
    from roformer_tf.pretraining import PretrainingSettings
    from roformer_tf.pretraining.plan import DEFAULT_FLOPS, MARGIN, plan_run

    settings = PretrainingSettings.from_file(args.settings)
    if args.memory is not None:
        changed = dataclasses.replace(settings.run, memory=args.memory, micro_batch_size=None)
        settings = dataclasses.replace(settings, run=changed)
    flops = DEFAULT_FLOPS[settings.model.dtype] if args.flops is None else args.flops
    plans = plan_run(
        settings, replicas=args.gpus, flops=flops, vocabulary_size=args.vocabulary_size
    )
    memory = settings.run.memory
    _print_memory(plans)
    _print_work(plans)
    print(
        f"{args.gpus} GPU(s) at {flops:.3g} operations/s each{'' if args.flops else ' (default)'}.",
        end=" ",
    )
    if memory is None:
        print("No memory is given (--memory): micro-batches are those of the file.")
    else:
        print(f"Memory {memory} each, of which {MARGIN:.0%} is left free.")
    return 0


def _print_memory(plans):
    columns = ("parameters", "optimizer", "gradients", "activations", "logits", "peak")
    table = _table("Bytes on each GPU", "stage", "length", "micro-batch", "slices", *columns)
    for number, plan in enumerate(plans, 1):
        sizes = [_bytes(getattr(plan.memory, name)) for name in columns]
        slices = (str(plan.micro_batch_size), str(plan.slices))
        table.add_row(str(number), str(plan.stage.max_length), *slices, *sizes)
    _print(table)


def _print_work(plans):
    columns = ("length", "batch", "steps", "tokens", "FLOP/step", "time")
    table = _table("Work of all GPUs", "stage", *columns)
    for number, plan in enumerate(plans, 1):
        stage = plan.stage
        table.add_row(
            str(number),
            str(stage.max_length),
            str(stage.global_batch_size),
            f"{stage.steps:,}",
            f"{stage.positions / 1e9:,.3g} G",
            f"{plan.flops_per_step:.3e}",
            _time(plan.seconds),
            end_section=number == len(plans),
        )
    steps = sum(plan.stage.steps for plan in plans)
    positions = sum(plan.stage.positions for plan in plans)
    seconds = sum(plan.seconds for plan in plans)
    total = ("", "", f"{steps:,}", f"{positions / 1e9:,.3g} G", "", _time(seconds))
    table.add_row("all", *total)
    _print(table)


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


def _time(seconds):
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
