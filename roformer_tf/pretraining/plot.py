"""Plots the curves of a pretraining run."""

import math
from pathlib import Path

import numpy as np

from roformer_tf.checks import check_one_of
from roformer_tf.files import write_picture
from roformer_tf.pretraining.callbacks import HELD_OUT_COLUMNS, LOG_COLUMNS, CsvLog

SUFFIXES = (".png", ".svg")
BLUE, ORANGE, GREY = "#1f5fa8", "#d9480f", "#6b7280"
SMOOTH_SHARE = 0.01  # of all rows go into one point of the smooth curve
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "path.simplify_threshold": 0.5,  # of a pixel: long runs make small files
    "svg.fonttype": "none",
    "svg.hashsalt": "run",
}


def plot_run(folder, output=None):
    """Plots loss, accuracy and learning rate of a pretraining run over its training tokens.

    Stages are shaded, longer ones darker, and labelled with their lengths. The faint line shows the
    single rows of the log, the strong one a moving mean that does not cross from one stage into the
    next. Points are results on held-out text.

    Args:
        folder: str or path. The run's folder, with the `log.csv` and, if there is one, the
            `held_out.csv` of `RunLog`.
        output: str or path. The picture, `.png` or `.svg`; both if there is no suffix. Defaults to
            `run.png` and `run.svg` in the folder.

    Returns:
        list of `pathlib.Path`. The pictures written.

    Raises:
        FileNotFoundError: If there is no `log.csv`.
        ValueError: If the log has no rows or other columns, or `output` has another suffix.
        ImportError: If matplotlib is not installed.

    Example:

    >>> import tempfile
    >>> from roformer_tf.pretraining import Stage
    >>> from roformer_tf.pretraining.callbacks import RunLog
    >>> from roformer_tf.pretraining.plot import plot_run
    >>> folder = tempfile.mkdtemp()
    >>> log = RunLog([Stage(128, 8, steps=10, learning_rate=1e-4)], folder)
    >>> log.begin_stage(0)
    >>> log.on_epoch_begin(0)
    >>> for step in range(10):
    ...     log.on_train_batch_begin(step)
    ...     logs = {"loss": 9.0 - step / 2, "accuracy": step / 50, "tokens": 1000}
    ...     logs |= {"predictions": 150, "learning_rate": 1e-4, "padding": 0.0, "skipped": 0}
    ...     log.on_train_batch_end(step, logs)
    >>> [path.name for path in plot_run(folder)]
    ['run.png', 'run.svg']

    Reference: figure 3 of arXiv 2104.09864 plots losses like this.
    """
    path = Path(folder) / "run" if output is None else Path(output)
    if path.suffix:
        check_one_of("output", path.suffix, SUFFIXES)
    outputs = [path] if path.suffix else [path.with_suffix(suffix) for suffix in SUFFIXES]
    log, held_out = read_run(folder)
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "Plotting needs matplotlib: pip install 'roformer-tf[plots]', or "
            "pip install matplotlib."
        ) from error
    with matplotlib.rc_context(STYLE):
        figure = draw_run(log, held_out)
        for path in outputs:
            write_picture(figure, path, dpi=160)
    return outputs


def read_run(folder):
    """Reads `log.csv` and, if there is one, `held_out.csv`: dicts from column to float array."""
    path = Path(folder) / "log.csv"
    if not path.exists():
        raise FileNotFoundError(
            f"There is no {path}. Expected the folder of a pretraining run, with the log.csv that "
            "RunLog writes."
        )
    log = _columns(CsvLog(path, LOG_COLUMNS))
    if not len(log["step"]):
        raise ValueError(f"{path} has no rows yet: there is nothing to plot before the first step.")
    return log, _columns(CsvLog(path.with_name("held_out.csv"), HELD_OUT_COLUMNS))


def _columns(file):
    columns = {name: [] for name in file.columns}
    for line, row in enumerate(file.rows(), 2):
        for name, value in row.items():
            try:
                columns[name].append(float(value or "nan"))
            except ValueError:
                raise ValueError(
                    f"{file.path}, line {line}: expected a number for {name}. Received: {value!r}"
                ) from None
    return {name: np.array(values) for name, values in columns.items()}


def draw_run(log, held_out):
    """Draws the figure from the columns of both files."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, PercentFormatter

    tokens = log["tokens"]
    # the first row of each stage, and the number of rows
    bounds = [0, *(np.flatnonzero(np.diff(log["stage"])) + 1), len(tokens)]
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    loss, accuracy, rate = axes = figure.subplots(3, 1, sharex=True, height_ratios=[4, 4, 1])
    for axis, name in ((loss, "loss"), (accuracy, "accuracy")):
        axis.plot(tokens, log[name], color=BLUE, alpha=0.25, linewidth=0.6)
        axis.plot(tokens, moving_mean(log[name], bounds), color=BLUE, label="training")
        if np.isfinite(held_out[name]).any():
            points = held_out["tokens"], held_out[name]
            axis.plot(*points, "o", color=ORANGE, label="held-out text", clip_on=False, zorder=4)
        axis.set_ylabel(name)
    losses = log["loss"][np.isfinite(log["loss"]) & (log["loss"] > 0)]
    if len(losses) and losses.max() > 3 * losses.min():  # or later stages would all look alike
        loss.set_yscale("log")
        loss.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        loss.yaxis.set_major_formatter("{x:g}")
        loss.minorticks_off()
    loss.legend(loc="upper right")
    accuracy.set_ylim(bottom=max(0.0, accuracy.get_ylim()[0]))
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    rate.plot(tokens, log["learning_rate"], color=GREY)
    rate.set_ylabel("learning rate")
    peak = np.nanmax(log["learning_rate"], initial=0.0)
    if 0 < peak < np.inf:
        rate.set_ylim(0, 1.15 * peak)
        rate.set_yticks([0, peak], ["0", f"{peak:.3g}"])
    rate.set_xlabel("tokens")
    rate.xaxis.set_major_formatter(EngFormatter())
    rate.set_xlim(0, tokens[-1])
    _shade_stages(axes, log, bounds)
    figure.align_ylabels()
    return figure


def _shade_stages(axes, log, bounds):
    tokens = [0.0, *(log["tokens"][end - 1] for end in bounds[1:])]
    lengths = [int(log["max_length"][start]) for start in bounds[:-1]]
    ranks = sorted(set(lengths))
    for start, end, length in zip(tokens, tokens[1:], lengths):
        shade = 0.06 + 0.18 * ranks.index(length) / max(len(ranks) - 1, 1)
        for axis in axes:
            axis.axvspan(start, end, color=BLUE, alpha=shade, linewidth=0, zorder=0)
        narrow = end - start < 0.04 * tokens[-1]
        axes[0].text(
            (start + end) / 2,
            1.02,
            length,
            transform=axes[0].get_xaxis_transform(),
            ha="center",
            rotation=90 if narrow else 0,
        )
    axes[0].text(-0.01, 1.02, "length", transform=axes[0].transAxes, ha="right", color=GREY)


def moving_mean(values, bounds, share=SMOOTH_SHARE):
    """Moving mean of the finite values over a share of all values, within each stage."""
    means = np.full(len(values), math.nan)
    for start, end in zip(bounds, bounds[1:]):
        part = values[start:end]
        window = np.ones(min(max(1, round(share * len(values))), len(part)))
        counts = np.convolve(np.isfinite(part), window, "same")
        sums = np.convolve(np.where(np.isfinite(part), part, 0.0), window, "same")
        means[start:end] = np.where(counts > 0.5, sums / np.maximum(counts, 1.0), math.nan)
    return means
