"""What the experiments share: runs that are kept, and the tables and pictures made of them.

An experiment makes many short runs. Each finished run appends one line of JSON to the file `--results`: its settings,
result, time and versions. A run that is already in the file is not repeated, so you can stop a program at any time and
start it again with the same command. After the last run the program draws its tables and pictures; `--report` does
only that.

The default file is `output/results/NAME.jsonl`, which is yours. The results that come with the repository were written
with `--results experiments/results/NAME.jsonl`.
"""

import argparse
import ast
import csv
import datetime
import hashlib
import importlib.metadata
import json
import lzma
import os
import platform
import textwrap
import time
from pathlib import Path

import numpy as np

from roformer_tf.files import replace_file, write_picture

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tensorflow", "keras", "keras-hub", "numpy")


def make_parser(doc, name, seeds=(0, 1, 2)):
    """Makes a parser with the arguments that all experiments take."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument(
        "--data",
        default=str(ROOT.parent / "shared" / "data"),
        help="folder of the datasets",
    )
    parser.add_argument(
        "--results",
        default=str(ROOT / "output" / "results" / f"{name}.jsonl"),
        help="file of the finished runs; the report is written beside it (%(default)s)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument(
        "--report",
        action="store_true",
        help="run nothing; redraw the report from the finished runs",
    )
    return parser


def main(parser, run, report):
    """Runs an experiment: `run(args)`, unless `--report` is given, and then `report(results)`."""
    args = parser.parse_args()
    if not args.report:
        run(args)
    report(Results(args.results))


def add_settings(parser, defaults):
    """Adds `--set`, which changes single values of a dict of settings."""
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help=f"settings to change, of {', '.join(f'{k}={v}' for k, v in defaults.items())}",
    )


def with_values(defaults, changes):
    """Returns the settings as changed by `--set`. A value is a Python literal or a plain word."""
    changed = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in defaults or not value:
            raise SystemExit(
                f"--set takes KEY=VALUE, with one of {', '.join(defaults)}. Received: {change!r}"
            )
        try:
            changed[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changed[key] = value
    return {**defaults, **changed}


def existing(path):
    """Returns the path, or exits with a message if nothing is there."""
    if not Path(path).exists():
        raise SystemExit(f"There is no {path}: --data must name the folder that holds it.")
    return Path(path)


def read_table(path):
    """Reads a tab-separated file with a header line, plain or `.xz`, as a list of dicts."""
    opener = lzma.open if str(path).endswith(".xz") else open
    with opener(existing(path), "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_lines(path):
    """Reads the JSON lines of an `.xz` file, as a list of dicts."""
    with lzma.open(existing(path), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Results:
    """The finished runs of an experiment: one line of JSON each, in one file.

    Args:
        path: str or path of the file. The picture and the table get the same name, with the ending .png and .md.
    """

    def __init__(self, path):
        self.path = Path(path)
        if self.path.suffix != ".jsonl":
            raise SystemExit(f"--results must name a file *.jsonl. Received: {self.path}")

    def run(self, name, settings, compute, model=None):
        """Returns the record of a run, and computes it only if the file does not hold it yet.

        Args:
            name: str. Name of the run, unique in the file.
            settings: dict. Everything that the result depends on.
            compute: callable without arguments. Returns a dict that JSON can hold.
            model: path. Folder of the pretrained model that the run starts from, if any. The record
                keeps its `fingerprint`.

        Raises:
            SystemExit: If the file holds a run of this name with other settings or another model.
        """
        settings = json.loads(json.dumps(settings))
        origin = {} if model is None else {"model": fingerprint(model)}
        record = next((record for record in self.all() if record["name"] == name), None)
        if record is not None:
            # early records do not say which model they started from
            known = {"settings": record["settings"], "model": record.get("model")}
            for key, value in {"settings": settings, **origin}.items():
                if known[key] not in (value, None):
                    difference = _difference(known[key], value) if key == "settings" else value
                    raise SystemExit(
                        f"{self.path} holds {name} with other {key} ({difference}). Name another file with "
                        "--results, or delete its line to run it again."
                    )
            return record
        print(f"{name} ...", flush=True)
        start, cpu = time.time(), time.process_time()
        result = compute()
        record = {
            "name": name,
            "settings": settings,
            **origin,
            "result": result,
            "seconds": round(time.time() - start, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            # one write, so that two programs can append to the same file
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        print(f"{name}: {record['seconds']:.0f} s", flush=True)
        return record

    def all(self):
        """Returns the records of all runs, sorted by name."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return sorted(map(json.loads, lines), key=lambda record: record["name"])

    def grouped(self, *keys):
        """Groups the records by some of their settings.

        Returns:
            Dict from the value of one key, or a tuple of the values of several, to a list of records.

        Raises:
            SystemExit: If there is no run yet.
        """
        groups = {}
        for record in self.all():
            values = tuple(record["settings"][key] for key in keys)
            groups.setdefault(values[0] if len(keys) == 1 else values, []).append(record)
        if not groups:
            raise SystemExit(f"There is no run in {self.path} yet.")
        return groups

    def picture(self, part=""):
        """Returns the path of a picture beside the results: `NAME.png`, or `NAME_part.png`."""
        return self.path.with_name("_".join(filter(None, (self.path.stem, part))) + ".png")

    def write_report(self, title, *parts):
        """Writes the report, `NAME.md`. Each part is a paragraph or a table, as a string."""
        records = self.all()
        minutes = sum(record["seconds"] for record in records) / 60
        dates = sorted({record["date"] for record in records})
        versions = {tuple(record["versions"].items()) for record in records}
        footer = (
            f"{len(records)} runs, {minutes:.0f} minutes in all; {' to '.join(sorted({dates[0], dates[-1]}))}; "
            f"{'; '.join(sorted({record['machine'] for record in records}))}; "
            + "; ".join(", ".join(f"{name} {v}" for name, v in each) for each in sorted(versions))
            + "."
        )
        path = self.path.with_suffix(".md")
        parts = [part if part.startswith(("|", "!")) else wrap(part) for part in (*parts, footer)]
        write_text(path, "\n\n".join([f"# {title}", *parts]) + "\n")
        print(path)


def wrap(text):
    """Wraps a paragraph of Markdown at 100 columns."""
    return "\n".join(textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False))


def fingerprint(model):
    """Hashes the settings, vocabulary and weights of a model's folder to 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for pattern in ("bert_config.json", "bert_model.ckpt.*", "vocab.txt", "config.json", "*.h5"):
        for file in sorted(existing(model).glob(pattern)):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def write_text(path, text):
    """Writes a text file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as file:
        file.write(text.encode())


def _difference(old, new):
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys)


# === Tables and pictures ===


def markdown_table(header, rows):
    """Formats a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def mean_and_spread(values, form="{:.3f}"):
    """Formats `3.210 ± 0.012 (3)`: mean, standard deviation and number of values.

    A single value stands alone, and no value gives "–".
    """
    if not len(values):
        return "–"
    if len(values) == 1:
        return form.format(values[0])
    spread = form.replace("+", "").format(np.std(values, ddof=1))
    return f"{form.format(np.mean(values))} ± {spread} ({len(values)})"


def draw(path, panels, width=6):
    """Draws panels of curves side by side. Runs with one label become their mean and their range.

    Args:
        path: path of the picture.
        panels: list of dicts with `title`, `x` and `y` (labels of the axes), `curves` (dict from label
            to a list of `(x, y)`), and optionally `log_x`, `bottom` and `top` of the y axis.
        width: float. Width of a panel in inches.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit("Drawing needs matplotlib: pip install 'roformer-tf[plots]'.") from error
    figure = Figure(figsize=(width * len(panels), 4.2), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for number, (label, runs) in enumerate(panel["curves"].items()):
            # the mean ends with the shortest run
            length = min(len(x) for x, _ in runs)
            x = np.asarray(runs[0][0][:length])
            y = np.array([values[:length] for _, values in runs], float)
            color = f"C{number % 10}"
            style = "-" if number < 10 else "--"
            axis.plot(x, y.mean(0), style, color=color, linewidth=1.5, label=label)
            if len(runs) > 1:
                axis.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.2, linewidth=0)
        axis.set_title(panel["title"], fontsize=10)
        axis.set_xlabel(panel["x"])
        axis.set_ylabel(panel["y"])
        if panel.get("log_x"):
            axis.set_xscale("log", base=2)
            axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.set_ylim(panel.get("bottom"), panel.get("top"))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        beside = (
            {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if len(panel["curves"]) > 8 else {}
        )
        axis.legend(fontsize=8, frameon=False, **beside)
    write_picture(figure, path, dpi=150)
    print(path)
