"""The picture of a run shows the numbers of its log; errors say what is missing."""

import math
import runpy

import numpy as np
import pytest

from roformer_tf.__main__ import main
from roformer_tf.pretraining import plot
from roformer_tf.pretraining.callbacks import LOG_COLUMNS
from roformer_tf.pretraining.plot import plot_run
from tests.pictures import without_matplotlib, words_of

# length, batch, steps: the paper's table 4, fewer steps
TABLE_4 = [
    *((512, 256, 400), (1536, 256, 25), (256, 256, 240)),
    *((128, 512, 160), (1536, 256, 20), (512, 512, 60)),
]


def write_log(folder, stages=TABLE_4, held_out=True, **changes):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    step = tokens = 0
    rows, points = [LOG_COLUMNS], [("stage", "step", "tokens", "loss", "accuracy")]
    for number, (length, batch, steps) in enumerate(stages, 1):
        for stage_step in range(1, steps + 1):
            step += 1
            tokens += round(0.97 * length * batch)
            fallen = 1 - math.exp(-step / 80)
            loss = 9.2 - 7.5 * fallen + rng.normal() * 0.05 - length / 10_000
            row = (step, number, stage_step, length, tokens, loss, 0.65 * fallen)
            row += (1e-5 * min(1, step / 50), 0.03, 0, 1e5, step, "")
            rows.append({**dict(zip(LOG_COLUMNS, row)), **changes}.values())
        points.append((number, step, tokens, loss + 0.05, 0.6))
    for name, lines in [("log.csv", rows)] + held_out * [("held_out.csv", points)]:
        (folder / name).write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return folder


def test_picture_of_six_stages(tmp_path):
    folder = write_log(tmp_path / "run")
    png, svg = plot_run(folder)
    assert [png, svg] == [folder / "run.png", folder / "run.svg"]
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 20_000
    words = words_of(svg)
    lengths = [word for word in words if word in ("128", "256", "512", "1536")]
    assert lengths == [str(length) for length, *_ in TABLE_4]
    labels = {"loss", "accuracy", "learning rate", "tokens", "training", "held-out text", "1e-05"}
    assert labels | {"100 M"} <= set(words)
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
    ("stages", "changes"),
    [
        ([(512, 8, 1)], {}),
        ([(64, 8, 2), (64, 8, 1), (128, 8, 1)], {}),
        ([(512, 8, 30)], {"loss": "nan", "accuracy": "nan"}),
        ([(512, 8, 30)], {"learning_rate": 0}),
    ],
    ids=["one_step", "short_stages", "nothing_finite", "no_learning_rate"],
)
def test_runs_with_little_to_see(tmp_path, stages, changes):
    folder = write_log(tmp_path / "run", stages, held_out=False, **changes)
    with open(folder / "log.csv", "a") as file:
        file.write("31,1,31,5")  # the run is in progress: the last row is half-written
    plot_run(folder, folder / "run.svg")
    assert "held-out text" not in words_of(folder / "run.svg")


def test_output_and_command(tmp_path, capsys):
    folder, out = write_log(tmp_path / "run", stages=[(512, 8, 30)]), tmp_path / "new" / "curve"
    assert plot_run(folder, f"{out}.png") == [out.with_suffix(".png")]
    assert main(["plot-run", str(folder), "--output", f"{out}.svg"]) == 0
    assert main(["plot-run", str(folder)]) == 0
    printed = [out.with_suffix(".svg"), folder / "run.png", folder / "run.svg"]
    assert capsys.readouterr().out == "".join(f"{path}\n" for path in printed)
    with pytest.raises(ValueError, match=r"must be one of '.png', '.svg'. Received: .*'.pdf'"):
        plot_run(folder, f"{out}.pdf")
    assert len(list(out.parent.iterdir())) == 2


def test_errors(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"There is no .*log.csv. Expected the folder of"):
        plot_run(tmp_path)
    header = ",".join(LOG_COLUMNS)
    for data, message in (
        *((data, "has no rows yet") for data in (b"", b"step,sta", header.encode())),
        ((header + "\n").encode(), "has no rows yet"),
        (
            b"epoch,accuracy,loss\n0,0.5,1.0\n",
            "not the log of a pretraining run: expected .* step,",
        ),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "not the log of a pretraining run"),
    ):
        (tmp_path / "log.csv").write_bytes(data)
        with pytest.raises(ValueError, match=message):
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
    without_matplotlib(monkeypatch)
    runpy.run_path(plot.__file__)  # importing needs none
    with pytest.raises(ImportError, match=r"pip install 'roformer-tf\[plots\]'"):
        plot_run(folder)
