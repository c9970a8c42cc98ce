"""`decay` prints and draws the numbers of the equation."""

import cmath
import csv
import json
import os

import numpy as np
import pytest

from roformer_tf.files import lock_folder
from tests.cli.conftest import run
from tests.pictures import without_matplotlib, words_of

LINEAR = '{"rope_type": "linear", "factor": 4}'
DYNAMIC = '{"type": "dynamic", "factor": 2, "original_max_position_embeddings": 8}'
YARN = '{"type": "yarn", "factor": 2, "original_max_position_embeddings": 8}'


def bound(distance, theta):
    """Section 3.4.3: the mean of |S_i|, i = 1 … d/2."""
    total, s = 0.0, 0j
    for frequency in theta:
        s += cmath.exp(1j * distance * frequency)
        total += abs(s)
    return total / len(theta)


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return names, np.array(rows, float)


def test_numbers(tmp_path, capsys):
    file = tmp_path / "new" / "decay.csv"
    arguments = ["--head-dim", 16, "--base", 500, "--distances", 40, "--csv", file]
    scalings = ["--scaling", LINEAR, "--scaling", DYNAMIC, "--length", 16]
    assert run("decay", *arguments, *scalings) == 0
    names, rows = read(file)
    assert names == ["distance", "RoPE", "linear factor=4", "dynamic factor=2 trained=8 length=16"]
    np.testing.assert_array_equal(rows[:, 0], range(41))
    plain = [500 ** (-2 * i / 16) for i in range(8)]
    longer = (500 * (2 * 16 / 8 - 1) ** (16 / 14)) ** (-2 * np.arange(8) / 16)
    for column, theta in enumerate((plain, np.array(plain) / 4, longer), 1):
        expected = [bound(distance, theta) for distance in range(41)]
        # ratios by the length are float32, and the file has nine digits
        np.testing.assert_allclose(rows[:, column], expected, rtol=1e-5)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == str(file) and printed[1].split()[:2] == ["distance", "RoPE"]
    assert len(printed) == 2 + len(range(0, 41, 2))
    assert [float(x) for x in printed[4].split()] == [4, *np.round(rows[4, 1:], 3)]


def test_defaults_are_figure_2(capsys):
    assert run("decay") == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["0", "32.500"] and rows[-1].split()[0] == "256"
    theta = [10000 ** (-2 * i / 128) for i in range(64)]
    for row in rows:
        distance, value = map(float, row.split())
        assert abs(value - bound(distance, theta)) <= 5.1e-4


def test_pictures(tmp_path):
    for name in ("decay.png", "decay.svg"):
        file = tmp_path / name
        arguments = ["decay", "--distances", 20, "--scaling", LINEAR, "--output", file]
        assert run(*arguments) == 0
        first = file.read_bytes()
        assert run(*arguments) == 0 and file.read_bytes() == first, "the same numbers, same file"
    assert (tmp_path / "decay.png").read_bytes().startswith(b"\x89PNG")
    words = {"relative distance", "relative upper bound", "RoPE", "linear factor=4"}
    assert words <= set(words_of(tmp_path / "decay.svg"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decay.png", "decay.svg"]


@pytest.mark.skipif(os.name == "nt", reason="needs links and locks")
def test_files_beside_a_run_and_behind_links(tmp_path):
    table, link = tmp_path / "table.csv", tmp_path / "link.csv"
    link.symlink_to(table)
    with lock_folder(tmp_path):  # as a run locks its own
        assert run("decay", "--distances", 2, "--csv", link) == 0
    assert link.is_symlink() and len(read(table)[1]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "table.csv"]


def test_rules_that_differ_in_the_trained_length(capsys):
    rule = {"type": "dynamic", "factor": 2}
    rules = [json.dumps({**rule, "original_max_position_embeddings": n}) for n in (8, 16)]
    assert run("decay", "--distances", 32, "--scaling", rules[0], "--scaling", rules[1]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header.split("  ")[-2:] == [f"dynamic factor=2 trained={n} length=33" for n in (8, 16)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--head-dim", 7], "`head_dim` must be a positive even integer"),
        (["--base", -1], "`base` must be positive"),
        (["--distances", 0], "--distances must be positive. Received: 0"),
        (["--csv", f"{__file__}/decay.csv"], "test_decay.py is a file"),
        (["--output", "decay.pdf"], "--output must end in .png or .svg. Received: decay.pdf"),
        (["--scaling", "linear"], "--scaling must be a dictionary in JSON. Received: linear"),
        (["--scaling", "[1]"], "`rope_scaling` must be None or a dictionary"),
        (["--scaling", "null"], "--scaling must be a dictionary in JSON. Received: null"),
        (["--base", "inf"], "`base` must be positive and finite"),
        (["--base", 1, "--scaling", YARN], "a base (`max_wavelength`) above 1. Received: base=1"),
        (["--scaling", '{"rope_type": "linear"}'], "needs `factor`"),
    ],
)
def test_errors(arguments, message, error_of):
    assert message in error_of("decay", *arguments)


def test_without_matplotlib(tmp_path, monkeypatch, error_of):
    without_matplotlib(monkeypatch)
    message = error_of("decay", "--output", tmp_path / "new" / "a.png")
    assert "pip install 'roformer-tf[plots]'" in message
    assert not (tmp_path / "new").exists()
    assert run("decay", "--distances", 4) == 0  # numbers need none
