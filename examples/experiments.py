"""What the experiments share: runs whose results are kept in JSON files, and the tables and pictures made of them.

An experiment is a program of many short runs. Each finished run leaves a small JSON file in `--results`: its settings,
its result, its time and the versions. A run whose file is there is not run again, so a stopped program goes on where it
was. After the last run tables and pictures are made of the runs that are there; `--report` does only that.

By default the folder is `output/results/NAME`, which is yours. The results that come with the repository were written
with `--results benchmarks/results/NAME`.
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
import re
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tensorflow", "keras", "keras-hub", "numpy")


def make_parser(doc, name, seeds=(0, 1, 2)):
    """The arguments that all experiments have."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument(
        "--data",
        default=str(ROOT.parent / "shared" / "data"),
        help="folder that holds the folders of the datasets",
    )
    parser.add_argument(
        "--results",
        default=str(ROOT / "output" / "results" / name),
        help="folder of the finished runs and of the report (output/results/…)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument(
        "--report", action="store_true", help="run nothing, only draw what is there"
    )
    return parser


def add_settings(parser, defaults):
    """Adds `--set`, by which single values of a dictionary of settings are changed."""
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help=f"settings to change, of {', '.join(f'{k}={v}' for k, v in defaults.items())}",
    )


def with_values(defaults, changes):
    """The settings with the changes of `--set`; a value is a Python literal or a word."""
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
    """The path, if it is there."""
    if not Path(path).exists():
        raise SystemExit(f"There is no {path}: --data must name the folder that holds it.")
    return Path(path)


def read_table(path):
    """Rows of a tab-separated file under a header line, which may be compressed, as dictionaries."""
    opener = lzma.open if str(path).endswith(".xz") else open
    with opener(existing(path), "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


class Results:
    """The finished runs of an experiment, a JSON file each.

    Args:
        folder: str or path.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    def run(self, name, settings, compute, model=None):
        """The record of a run: the one that is there, or a new one.

        Args:
            name: str, of the file.
            settings: dictionary, all that the result depends on.
            compute: function without arguments; returns a dictionary that JSON can hold.
            model: path of the folder of the model that the run goes on from, if it does; its `fingerprint` is kept.

        Raises:
            SystemExit: if the run is there with other settings, or of another model.
        """
        path = self.folder / f"{name}.json"
        settings = json.loads(json.dumps(settings))
        origin = {} if model is None else {"model": fingerprint(model)}
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["settings"] != settings:
                raise SystemExit(
                    f"{path} is of a run with other settings ({_difference(record['settings'], settings)}). Name "
                    "another folder with --results, or delete the file to run it again."
                )
            # a record of before models were noted has none
            if origin and record.get("model", origin["model"]) != origin["model"]:
                raise SystemExit(
                    f"{path} is of a run with another model than {model}. Name another folder with --results, or "
                    "delete the file to run it again."
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
        self._write(path, record)
        print(f"{name}: {record['seconds']:.0f} s", flush=True)
        return record

    def all(self):
        """The records of all runs, sorted by name."""
        paths = sorted(self.folder.glob("*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def grouped(self, *keys):
        """Dictionary from the values of some settings (one value, or a tuple of them) to the records that have them."""
        groups = {}
        for record in self.all():
            values = tuple(record["settings"][key] for key in keys)
            groups.setdefault(values[0] if len(keys) == 1 else values, []).append(record)
        return groups

    def write_report(self, title, *parts):
        """Writes `report.md`: paragraphs and tables, each a string."""
        records = self.all()
        minutes = sum(record["seconds"] for record in records) / 60
        dates = sorted({record["date"] for record in records})
        versions = {tuple(record["versions"].items()) for record in records}
        footer = [
            f"{len(records)} runs, {minutes:.0f} minutes in all; {' to '.join(sorted({dates[0], dates[-1]}))}; "
            f"{'; '.join(sorted({record['machine'] for record in records}))}; "
            + "; ".join(", ".join(f"{name} {v}" for name, v in each) for each in sorted(versions))
            + "."
        ]
        path = self.folder / "report.md"
        write_text(path, "\n\n".join([f"# {title}", *parts, *footer]) + "\n")
        print(path)

    def _write(self, path, record):
        text = json.dumps(record, indent=1, ensure_ascii=False)
        # lists of numbers on a line, not one number a line
        text = re.sub(r"\[[^][{}\"]*\]", lambda match: " ".join(match[0].split()), text)
        write_text(path, text + "\n")


def fingerprint(model):
    """Sixteen hexadecimal digits that say which model a folder holds: settings, words and weights."""
    digest = hashlib.sha256()
    for pattern in ("bert_config.json", "bert_model.ckpt.*", "vocab.txt", "config.json", "*.h5"):
        for file in sorted(existing(model).glob(pattern)):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def write_text(path, text):
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _difference(old, new):
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys)


# === Tables and pictures ===


def markdown_table(header, rows):
    """A table; the first row is the header."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def mean_and_spread(values, form="{:.3f}"):
    """`3.210 ± 0.012 (3)`: mean, standard deviation and number of runs; the value alone for one run, – for none."""
    if not len(values):
        return "–"
    if len(values) == 1:
        return form.format(values[0])
    spread = form.replace("+", "").format(np.std(values, ddof=1))
    return f"{form.format(np.mean(values))} ± {spread} ({len(values)})"


def draw(path, panels, width=6):
    """Draws curves side by side; curves of one label are runs that differ by the seed: their mean, and the range.

    Args:
        path: path of the picture.
        panels: list of dictionaries of `title`, `x`, `y` (labels of the axes), `curves`, a dictionary from label to a
            list of `(x, y)` with the same x, and optionally `log_x`, `bottom` and `top` (of the y axis).
        width: inches of a panel.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit("Drawing needs matplotlib: pip install 'roformer-tf[plots]'.") from error
    figure = Figure(figsize=(width * len(panels), 4.2), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for number, (label, runs) in enumerate(panel["curves"].items()):
            # a run that was shorter, or has not ended, shortens the mean
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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".new-{path.name}")
    figure.savefig(temporary, dpi=150, metadata={"Software": None})
    os.replace(temporary, path)
    print(path)
