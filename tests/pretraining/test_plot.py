"""The picture of a run shows the numbers of its log; errors say what is missing."""

import math
import runpy
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from roformer_tf.__main__ import main
from roformer_tf.pretraining import plot
from roformer_tf.pretraining.callbacks import HELD_OUT_COLUMNS, LOG_COLUMNS
from roformer_tf.pretraining.csv_log import CsvLog
from roformer_tf.pretraining.plot import plot_run

# length, batch, steps: the paper's table 4, fewer steps
TABLE_4 = [
    (512, 256, 400),
    (1536, 256, 25),
    (256, 256, 240),
    (128, 512, 160),
    (1536, 256, 20),
    (512, 512, 60),
]


def write_log(folder, stages=TABLE_4, held_out=True, **changes):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    step = tokens = 0
    lines = []
    points = CsvLog(folder / "held_out.csv", HELD_OUT_COLUMNS)
    for number, (length, batch, steps) in enumerate(stages, 1):
        for stage_step in range(1, steps + 1):
            step += 1
            tokens += round(0.97 * length * batch)
            loss = 1.7 + 7.5 * math.exp(-step / 80) + rng.normal() * 0.05 - length / 10_000
            row = {
                "step": step,
                "stage": number,
                "stage_step": stage_step,
                "max_length": length,
                "tokens": tokens,
                "loss": loss,
                "accuracy": 0.65 * (1 - math.exp(-step / 80)),
                "learning_rate": 1e-5 * min(1, step / 50),
                "padding": 0.03,
                "skipped": 0,
                "tokens_per_second": 1e5,
                "seconds": step,
                "input_wait": "",
            }
            lines.append(",".join(str({**row, **changes}[name]) for name in LOG_COLUMNS) + "\n")
        if held_out:
            point = {"stage": number, "step": step, "tokens": tokens}
            points.append({**point, "loss": loss + 0.05, "accuracy": 0.6})
    (folder / "log.csv").write_text(",".join(LOG_COLUMNS) + "\n" + "".join(lines))
    return folder


def texts_of(svg):
    """All words of an SVG."""
    return [
        "".join(element.itertext()).strip()
        for element in xml.etree.ElementTree.parse(svg).iter()
        if element.tag.endswith("}text")
    ]


def test_picture_of_six_stages(tmp_path):
    folder = write_log(tmp_path / "run")
    png, svg = plot_run(folder)
    assert [png, svg] == [folder / "run.png", folder / "run.svg"]
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 20_000
    words = texts_of(svg)
    assert [word for word in words if word in ("128", "256", "512", "1536")] == [
        str(length) for length, *_ in TABLE_4
    ]
    for word in (
        "loss",
        "accuracy",
        "learning rate",
        "tokens",
        "training",
        "held-out text",
        "1e-05",
    ):
        assert word in words
    assert "100 M" in words
    before = [path.read_bytes() for path in (png, svg)]
    plot_run(folder)
    assert before == [path.read_bytes() for path in (png, svg)], "the same log, the same files"
    assert len(list(folder.iterdir())) == 4


def test_curves_are_those_of_the_log(tmp_path):
    log, held_out = plot.read_run(write_log(tmp_path / "run"))
    for axis, name in zip(plot.draw_run(log, held_out).axes, ("loss", "accuracy", "learning_rate")):
        lines = axis.get_lines()
        np.testing.assert_array_equal(
            lines[0].get_xydata(), np.stack([log["tokens"], log[name]], 1)
        )
        if name != "learning_rate":
            points = np.stack([held_out["tokens"], held_out[name]], 1)
            np.testing.assert_array_equal(lines[-1].get_xydata(), points)
        spans = sorted(patch.get_x() for patch in axis.patches)
        assert spans == [0.0, *held_out["tokens"][:-1]], "a shade begins where a stage does"


def test_moving_mean(rng):
    values = rng.normal(size=200)
    values[[10, 11, 150]] = math.nan, math.inf, math.nan
    smooth = plot.moving_mean(values, [0, 120, 200], share=0.055)
    for row in range(200):
        near = (abs(np.arange(200) - row) <= 5) & np.isfinite(values)
        near &= (np.arange(200) < 120) == (row < 120)
        np.testing.assert_allclose(smooth[row], values[near].mean(), rtol=0, atol=1e-12)
    alone = plot.moving_mean(np.array([math.nan, 1.0]), [0, 1, 2])
    assert math.isnan(alone[0]) and alone[1] == 1.0


def test_long_log_makes_a_small_file(tmp_path):
    folder = write_log(tmp_path / "run", stages=[(128, 8, 10_000), (512, 4, 10_000)])
    [svg] = plot_run(folder, tmp_path / "run.svg")
    assert svg.stat().st_size < 300_000


@pytest.mark.parametrize(
    "stages", [[(512, 8, 1)], [(512, 8, 3)], [(64, 8, 2), (64, 8, 1), (128, 8, 1)]]
)
def test_short_runs(tmp_path, stages):
    folder = write_log(tmp_path / "run", stages=stages, held_out=False)
    plot_run(folder)
    assert "held-out text" not in texts_of(folder / "run.svg")


@pytest.mark.parametrize("changes", [{"loss": "nan", "accuracy": "nan"}, {"learning_rate": 0}])
def test_runs_with_nothing_to_see(tmp_path, changes):
    plot_run(write_log(tmp_path / "run", stages=[(512, 8, 30)], held_out=False, **changes))


def test_output(tmp_path):
    folder = write_log(tmp_path / "run", stages=[(512, 8, 30)])
    out = tmp_path / "new" / "curve"
    assert plot_run(folder, f"{out}.png") == [out.with_suffix(".png")]
    assert plot_run(folder, out) == [out.with_suffix(".png"), out.with_suffix(".svg")]
    with pytest.raises(
        ValueError, match=r"`output` must be one of '.png', '.svg'. Received: output='.pdf'"
    ):
        plot_run(folder, f"{out}.pdf")
    assert len(list(out.parent.iterdir())) == 2


def test_run_that_goes_on(tmp_path):
    """The last row may be half-written."""
    folder = write_log(tmp_path / "run", stages=[(512, 8, 30)])
    with open(folder / "log.csv", "a") as file:
        file.write("31,1,31,5")
    plot_run(folder)


def test_errors(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"There is no .*log.csv. Expected the folder of"):
        plot_run(tmp_path)
    log = tmp_path / "log.csv"
    for text in ("", "step,sta", ",".join(LOG_COLUMNS), ",".join(LOG_COLUMNS) + "\n"):
        log.write_text(text)
        with pytest.raises(ValueError, match="has no rows yet"):
            plot_run(tmp_path)
    log.write_text("epoch,accuracy,loss\n0,0.5,1.0\n")
    with pytest.raises(
        ValueError, match="not the log of a pretraining run: expected the columns step,"
    ):
        plot_run(tmp_path)
    log.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    with pytest.raises(ValueError, match="not the log of a pretraining run"):
        plot_run(tmp_path)
    write_log(tmp_path, stages=[(512, 8, 3)], loss="x")
    with pytest.raises(ValueError, match="line 2: expected a number for loss. Received: 'x'"):
        plot_run(tmp_path)
    assert main(["plot-run", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert not list(tmp_path.glob("*run*"))


def test_without_matplotlib(tmp_path, monkeypatch):
    folder = write_log(tmp_path / "run", stages=[(512, 8, 3)])
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    runpy.run_path(plot.__file__)  # importing needs none
    with pytest.raises(ImportError, match=r"pip install 'roformer-tf\[plots\]'"):
        plot_run(folder)


def test_command(tmp_path, capsys):
    folder = write_log(tmp_path / "run", stages=[(512, 8, 30)])
    assert main(["plot-run", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'run.png'}\n{folder / 'run.svg'}\n"
    assert main(["plot-run", str(folder), "--output", str(tmp_path / "a.svg")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.svg'}\n"
