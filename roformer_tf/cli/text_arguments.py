"""The texts that commands take, arguments or the lines of standard input, and what they say of each as JSON."""

import json
import sys


def add_texts(parser, example):
    """Adds the argument `texts`."""
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help=f"such as {example}; without any, the lines of standard input",
    )


def add_json(parser, what):
    """Adds the argument `json`."""
    parser.add_argument(
        "--json", action="store_true", help=f"print JSON, a line for each text: {what}"
    )


def read_texts(args, keep_blank=False):
    """The texts of the command line, or of standard input, one a line; blank ones are left out, or kept.

    Raises:
        ValueError: if there is none.
    """
    texts = args.texts
    if not texts and not sys.stdin.isatty():
        texts = [line.rstrip("\n") for line in sys.stdin]
    if not any(text.strip() for text in texts):
        raise ValueError("There is no text: give one, or several, or a file on standard input.")
    return texts if keep_blank else [text for text in texts if text.strip()]


def print_json(record):
    """A line of JSON, there as soon as it is printed."""
    print(json.dumps(record, ensure_ascii=False), flush=True)
