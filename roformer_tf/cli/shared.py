"""What several commands share: arguments, the texts they read, and how they print."""

import json
import sys


def add_model(parser, folder="original folder, folder written by save_to_preset"):
    """Adds the arguments `model` and `--dtype`."""
    parser.add_argument("model", help=f"{folder}, or .keras file")
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
    """Returns the texts of the command line, or the lines of standard input.

    Blank texts are dropped unless `keep_blank`.

    Raises:
        ValueError: If there is no text.
    """
    texts = args.texts
    if not texts and not sys.stdin.isatty():
        texts = [line.rstrip("\n") for line in sys.stdin]
    if not any(text.strip() for text in texts):
        raise ValueError(
            "Expected at least one text. Received none: pass texts as arguments, or a file on "
            "standard input."
        )
    return texts if keep_blank else [text for text in texts if text.strip()]


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
