"""Draws the curves of a pretraining run."""

import math
import os
from pathlib import Path

import numpy as np

from roformer_tf.pretraining.csv_log import CsvLog
from roformer_tf.pretraining.run_log import HELD_OUT_COLUMNS, LOG_COLUMNS

SUFFIXES = (".png", ".svg")
BLUE, GREY, INK, LINE = "#1f5fa8", "#6b7280", "#1f2937", "#9ca3af"
SMOOTH_SHARE = 0.01  # of all tokens go into one point of the smooth curve
MOST_POINTS = 1500  # of a drawn line; more cannot be seen, and make an SVG slow


def plot_run(folder, output=None):
    """Draws loss, accuracy and learning rate of a pretraining run over the tokens it was trained on.

    The stages are shaded, the darker the longer, and labelled with their lengths. Behind the smooth curve, a moving
    mean that does not cross the bounds of stages, stand the single rows; the points are results on held-out text.

    Args:
        folder: str or path of the run's folder, with the `log.csv` and perhaps `held_out.csv` of `RunLog`.
        output: str or path of the picture, `.png` or `.svg`; both without a suffix. By default `run.png` and `run.svg`
            in the folder.

    Returns:
        list of `pathlib.Path`, the pictures written.

    Raises:
        FileNotFoundError: if there is no `log.csv`.
        ValueError: if it has no rows or other columns, or `output` has another suffix.
        ImportError: if matplotlib is missing.

    Example:

    >>> import tempfile
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.plot import plot_run
    >>> from roformer_tf.pretraining.run_log import RunLog
    >>> folder = tempfile.mkdtemp()
    >>> log = RunLog([Stage(128, 8, steps=10, learning_rate=1e-4)], folder)
    >>> log.begin_stage(0)
    >>> log.on_epoch_begin(0)
    >>> for step in range(10):
    ...     log.on_train_batch_begin(step)
    ...     log.on_train_batch_end(step, {"loss": 9.0 - step / 2, "accuracy": step / 50, "tokens": 1000,
    ...                                   "learning_rate": 1e-4, "padding": 0.0, "skipped": 0})
    >>> [path.name for path in plot_run(folder)]
    ['run.png', 'run.svg']

    Reference: figure 3 of arXiv 2104.09864 draws losses so.
    """
    folder = Path(folder)
    outputs = _outputs(folder / "run" if output is None else Path(output))
    log, held_out = _read(folder)
    figure, settings = _draw(log, held_out)
    import matplotlib

    with matplotlib.rc_context(settings):
        for path in outputs:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".new-{path.name}")
            # the same log gives the same file
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            try:
                figure.savefig(temporary, dpi=160, metadata=metadata)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    return outputs


def _outputs(path):
    if path.suffix in SUFFIXES:
        return [path]
    if path.suffix:
        raise ValueError(
            f"`output` must end in {' or '.join(SUFFIXES)}, or have no suffix for both. Received: {path}"
        )
    return [path.with_suffix(suffix) for suffix in SUFFIXES]


def _read(folder):
    """The columns of both files as float arrays; a held-out file need not be there."""
    path = folder / "log.csv"
    if not path.exists():
        raise FileNotFoundError(
            f"There is no {path}. Expected the folder of a pretraining run, with the log.csv that RunLog writes."
        )
    log = _columns(CsvLog(path, LOG_COLUMNS))
    if not len(log["step"]):
        raise ValueError(f"{path} has no rows yet: there is nothing to draw before the first step.")
    return log, _columns(CsvLog(folder / "held_out.csv", HELD_OUT_COLUMNS))


def _columns(file):
    rows = file.rows()
    columns = {name: np.empty(len(rows)) for name in file.columns}
    for number, row in enumerate(rows):
        for name, value in row.items():
            try:
                columns[name][number] = float(value) if value else math.nan
            except ValueError:
                raise ValueError(
                    f"{file.path}, line {number + 2}: expected a number for {name}. Received: {value!r}"
                ) from None
    return columns


def _draw(log, held_out):
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib: pip install 'roformer-tf[plots]', or pip install matplotlib."
        ) from error
    settings = {
        "font.size": 9,
        "axes.edgecolor": LINE,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "svg.fonttype": "none",
        "svg.hashsalt": "run",
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        loss, accuracy, rate = axes = figure.subplots(3, 1, sharex=True, height_ratios=[4, 4, 1])
        stages = _stages(log)
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", color=LINE, alpha=0.3, linewidth=0.6)
        _shade(axes, stages)
        _curve(loss, log, held_out, stages, "loss")
        _curve(accuracy, log, held_out, stages, "accuracy")
        _scale_loss(loss, log["loss"])
        loss.legend(loc="upper right", facecolor="white", framealpha=0.8, edgecolor="none")
        accuracy.set_ylim(bottom=max(0.0, accuracy.get_ylim()[0]))
        accuracy.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        _learning_rate(rate, log)
        rate.set_xlabel("tokens")
        rate.xaxis.set_major_formatter(_tokens)
        rate.set_xlim(0, log["tokens"][-1])
        figure.align_ylabels()
    return figure, settings


def _stages(log):
    """(first row, row after the last, tokens at its start, tokens at its end, length) of each stage."""
    bounds = np.flatnonzero(np.diff(log["stage"])) + 1
    starts, ends = [0, *bounds], [*bounds, len(log["stage"])]
    tokens = [0.0, *(log["tokens"][end - 1] for end in ends)]
    return [
        (start, end, tokens[i], tokens[i + 1], int(log["max_length"][start]))
        for i, (start, end) in enumerate(zip(starts, ends))
    ]


def _shade(axes, stages):
    lengths = sorted({length for *_, length in stages})
    whole = stages[-1][3]
    for number, (_, _, start, end, length) in enumerate(stages):
        shade = 0.06 + 0.18 * lengths.index(length) / max(len(lengths) - 1, 1)
        for axis in axes:
            axis.axvspan(start, end, color=BLUE, alpha=shade, linewidth=0, zorder=0)
            if number:
                axis.axvline(start, color="white", linewidth=1.2, zorder=1)
        axes[0].annotate(
            f"{length}",
            ((start + end) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=90 if end - start < 0.04 * whole else 0,
        )
    axes[0].annotate(
        "length",
        (0, 1),
        xycoords="axes fraction",
        xytext=(-6, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=GREY,
    )


def _curve(axis, log, held_out, stages, name):
    tokens, values = log["tokens"], log[name]
    raw = _thin(tokens, values)
    axis.plot(tokens[raw], values[raw], color=BLUE, alpha=0.25, linewidth=0.6, zorder=2)
    smooth = _moving_mean(tokens, values, stages, SMOOTH_SHARE * tokens[-1])
    chosen = _thin(tokens, smooth)
    axis.plot(tokens[chosen], smooth[chosen], color=BLUE, linewidth=1.6, label="training", zorder=3)
    measured = np.isfinite(held_out[name])
    if measured.any():
        axis.plot(
            held_out["tokens"][measured],
            held_out[name][measured],
            "o",
            color="#d9480f",
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            label="held-out text",
            zorder=4,
            clip_on=False,
        )
    axis.set_ylabel(name)


def _scale_loss(axis, values):
    """A logarithmic axis with plain numbers when the loss fell far, or the later stages all look alike."""
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) and values.max() > 3 * values.min():
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 1.5, 2, 3, 5, 7)]
        axis.set_yticks([tick for tick in ticks if low <= tick <= high])
        axis.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        axis.minorticks_off()


def _learning_rate(axis, log):
    rates = log["learning_rate"]
    chosen = _thin(log["tokens"], rates)
    axis.plot(log["tokens"][chosen], rates[chosen], color=GREY, linewidth=1.2)
    peak = max(rates[np.isfinite(rates)], default=0.0)
    if peak > 0:
        axis.set_ylim(0, 1.15 * peak)
        axis.set_yticks([0, peak])
        axis.yaxis.set_major_formatter(lambda rate, _: f"{rate:.3g}")
    axis.set_ylabel("learning rate")


def _tokens(count, _):
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:g} {letter}"
    return f"{count:g}"


def _moving_mean(tokens, values, stages, width):
    """Mean over the rows of the same stage within `width` tokens, weighted by tokens; NaN where none is finite."""
    finite = np.isfinite(values)
    weights = np.where(finite, np.diff(tokens, prepend=0.0), 0.0)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0) * weights)])
    counts = np.concatenate([[0.0], np.cumsum(weights)])
    mean = np.full(len(values), math.nan)
    for start, end, *_ in stages:
        inside = tokens[start:end]
        low = start + np.searchsorted(inside, inside - width / 2, "left")
        high = start + np.searchsorted(inside, inside + width / 2, "right")
        count = counts[high] - counts[low]
        means = (sums[high] - sums[low]) / np.where(count > 0, count, 1.0)
        mean[start:end] = np.where(count > 0, means, math.nan)
    return mean


def _thin(tokens, values):
    """Indices of the values to draw: where they lie close, the lowest and the highest of each run."""
    if len(values) <= MOST_POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, tokens[-1], MOST_POINTS // 2)
    chosen = []
    for part in np.split(np.arange(len(values)), np.searchsorted(tokens, edges)):
        part = part[np.isfinite(values[part])]
        if len(part):
            chosen += sorted({part[values[part].argmin()], part[values[part].argmax()]})
    return np.array(chosen, int)
