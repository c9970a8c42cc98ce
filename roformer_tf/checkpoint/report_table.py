"""A `CheckpointReport` as tables for people."""

import re
from collections import defaultdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "embedding_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position",
    "max_position_embeddings",
    "segment_vocab_size",
    "type_vocab_size",
    "dropout_rate",
    "hidden_dropout_prob",
    "attention_dropout_rate",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
)


def print_report(report, console=None):
    """Prints a `CheckpointReport` to a `rich.console.Console`."""
    console = console or Console()
    console.print(_summary(report))
    if report.config is not None:
        console.print(_settings(report.config))
    console.print(_variables(report.variables))
    for title, names in (
        ("Missing", report.missing),
        ("Unknown", report.unknown),
        (
            "Wrong shape",
            [f"{n}: settings {a}, stored {b}" for n, (a, b) in report.wrong_shape.items()],
        ),
        ("Notes", report.notes),
    ):
        if names:
            console.print(f"{title} ({len(names)})", style="bold")
            for name in names:
                console.print(Text(f"  {name}"))


def _summary(report):
    table = Table(title="Checkpoint", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    counts = ", ".join(f"{count} {group}" for group, count in report.groups.items())
    rows = {
        "source": report.source,
        "layout": report.layout,
        "family": report.family or "unknown",
        "application": report.application + (f", {report.pooler} pooler" if report.pooler else ""),
        "because": "\n".join(report.reasons),
        "parameters": f"{report.num_parameters:,} ({report.num_bytes / 1e6:,.1f} MB)",
        "variables": f"{len(report.variables)}: {counts}",
        "vocabulary": "no vocab.txt"
        if report.vocabulary_size is None
        else f"{report.vocabulary_size} tokens",
        "verdict": _verdict(report),
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _verdict(report):
    if report.family is None:
        return "cannot be loaded: unknown family"
    problems = len(report.missing) + len(report.unknown) + len(report.wrong_shape)
    if report.config is None:
        return "cannot be checked without settings"
    return (
        f"{problems} problems, see below"
        if problems
        else "complete: nothing missing, nothing unknown"
    )


def _settings(config):
    table = Table(title="Settings", title_justify="left")
    table.add_column("name")
    table.add_column("value", justify="right")
    for name in (
        *(n for n in _SETTINGS if n in config),
        *(n for n in config if n not in _SETTINGS),
    ):
        table.add_row(Text(name), Text(str(config[name])))
    return table


def _variables(variables):
    """One line per variable, but one for all encoder layers together where they agree in shape."""
    table = Table(title="Variables", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("shape", no_wrap=True)
    table.add_column("dtype")
    table.add_column("group")
    table.add_column("parameters", justify="right")
    lines = defaultdict(list)
    for variable in variables:
        if variable.group != "optimizer":
            general = re.sub(r"/layer_(\d+)/", "/layer_*/", variable.name)
            lines[general, variable.shape, variable.dtype, variable.group].append(variable)
    for (name, shape, dtype, group), members in lines.items():
        if len(members) == 1:
            name = members[0].name
        count = f"{len(members)} × " if len(members) > 1 else ""
        table.add_row(Text(name), str(shape), dtype, group, f"{count}{members[0].size:,}")
    return table
