"""What several commands share: arguments, the texts they read, and how they print."""

import contextlib
import itertools
import json
import sys

WINDOW = 512  # lines read before they are worked on


def add_model(parser, folder="original or Hugging Face folder, folder written by save_to_preset"):
    """Adds the arguments `model` and `--dtype`."""
    parser.add_argument(
        "model", help=f"{folder}, .zip file of one, hf://user/name[@revision], or .keras file"
    )
    parser.add_argument("--dtype", help="dtype policy: float32, mixed_bfloat16, …")


def add_texts(parser, example):
    """Adds the argument `texts`."""
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help=f"for example {example}; reads the lines of standard input if there is none",
    )


def add_json(parser, what):
    """Adds the argument `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print a JSON line per text: {what}")


def read_texts(args, keep_blank=False):
    """Returns the texts of the command line, or the lines of standard input, in lists.

    A list has at most `WINDOW` lines, and lines are read when their turn comes, so memory stays
    bounded. Blank texts are dropped unless `keep_blank`.

    Returns:
        Iterator of lists of strings.

    Raises:
        ValueError: If there is no text.
    """
    lines = iter(args.texts)
    if not args.texts and not sys.stdin.isatty():
        lines = (line.rstrip("\n") for line in sys.stdin)
    windows = _windows(lines, keep_blank)
    first = []
    while not any(line.strip() for texts in first for line in texts):
        first.append(next(windows, None))
        if first[-1] is None:
            raise ValueError(
                "Expected at least one text. Received none: pass texts as arguments, or a file "
                "on standard input."
            )
    return itertools.chain(first, windows)


def _windows(lines, keep_blank):
    """Yields lists of texts; counts those done on a terminal, if the output goes elsewhere."""
    with _progress() as advance:
        while window := list(itertools.islice(lines, WINDOW)):
            texts = [line for line in window if keep_blank or line.strip()]
            if texts:
                yield texts
            advance(len(window))


@contextlib.contextmanager
def _progress():
    """Gives a function to call with a number of lines that are done."""
    if sys.stdin.isatty() or sys.stdout.isatty() or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} texts"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.advance(task, count)


def print_json(record):
    """Prints one line of JSON at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def print_table(rows, columns=(), title=None, show_lines=False):
    """Prints a table of strings, with a header if there are `columns`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # rich would take [MASK] in a plain string for markup

    table = Table(*columns, show_header=bool(columns), show_lines=show_lines)
    if title is not None:
        table.title, table.title_justify = Text(title), "left"
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
