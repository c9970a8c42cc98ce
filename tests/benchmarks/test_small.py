"""Measurements that run in processes of their own: they run, and their tables say what was measured."""

import os
import sys

import pytest

from benchmarks import onnx_runtime, records, starting, training_calls
from roformer_tf.__main__ import main
from tests.processes import run_program

CASES = {
    "accelerator": (["torch", "transformers", "jax"], ["--repeats", "1"], 10),
    "onnx_runtime": (["torch", "transformers", "tf2onnx", "onnxruntime"], ["--repeats", "1"], 9),
}


@pytest.mark.slow
@pytest.mark.tensorflow("starts its own processes")
@pytest.mark.parametrize("name", CASES)
def test_runs(name, tmp_path):
    packages, options, count = CASES[name]
    for package in packages:
        pytest.importorskip(package)
    output = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *options]
    backend = "jax" if name == "accelerator" else "tensorflow"
    environment = {**os.environ, "KERAS_BACKEND": backend}
    run_program(*command, "--output", output, cwd=tmp_path, env=environment)
    assert len(records.read(output)["results"]) == count


@pytest.mark.slow
@pytest.mark.tensorflow("starts its own process")
def test_training_calls_have_onednn_as_users_have(tmp_path):
    """TensorFlow has oneDNN on Linux alone."""
    program = """
import runpy, sys
runpy.run_module("benchmarks.training_calls", run_name="__main__")
from tensorflow.python.util import _pywrap_util_port  # has no public name
assert _pywrap_util_port.IsMklEnabled() or sys.platform != "linux"
"""
    pytest.importorskip("snownlp")
    output = tmp_path / "results.jsonl"
    options = ["--quick", "--repeats", "1", "--count", "20", "--output", output]
    run_program(sys.executable, "-c", program, *options, cwd=tmp_path)
    assert len(records.read(output)["results"]) == 6


@pytest.mark.slow
def test_starting(tmp_path, monkeypatch, capsys):
    """Its programs run, here in this process."""
    assert starting.run(["-c", "print('a')\nprint(2.5)"], printed=True) == 2.5

    def run(arguments, printed=False):
        kind, program, *words = arguments
        monkeypatch.setattr("sys.argv", ["-c", *words])
        if kind == "-c":
            exec(program, {})
        else:
            assert (program, main(words)) == ("roformer_tf", 0)
        lines = capsys.readouterr().out.splitlines()
        return float(lines[-1]) if printed else 1.0

    output = tmp_path / "results.jsonl"
    command = ["starting", "--quick", "--repeats", "1", "--output", str(output)]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr(starting, "run", run)
    starting.main()
    assert len(records.read(output)["results"]) == 6


def test_tables():
    speed = {"row": "1 × 32", "side": "int8", "milliseconds": 5.0, "ratio": 0.5, "megabytes": 50.0}
    rows = [{"seed": i, "keras": 0.9, "float32": 0.9, "int8": 0.88 + i / 100} for i in range(3)]
    lines = onnx_runtime.table({"results": [speed, *rows]})
    assert lines[2] == "| 1 × 32 | `export_onnx`, int8 | 5.0 ms | 0.50 × | 50 MB |"
    assert lines[-1] == "| mean | 90.00% | 90.00% | 89.00% |"
    runs = {"pretrainer": [2.0, 4.0, 2.0], "fit": [4.0, 4.0, 4.0]}
    found = training_calls.rows("8 × 128", runs, {}, "pretrainer")
    assert [row["ratio"] for row in found] == [1.0, 0.5]
    runs = {"equal": [1.0], "mixed": [2.0]}
    found = training_calls.rows("reviews", runs, {"equal": 100, "mixed": 180}, "equal")
    assert [row["tokens_per_second"] for row in found] == [100.0, 90.0]
    assert training_calls.table({"results": found})[-1].endswith("| 90 tokens/s | 0.90 × |")
    rows = [("a", "a", 1.0), ("b", "a", 1.25)]
    rows = [{"row": row, "beside": a, "seconds": [2.0], "ratio": ratio} for row, a, ratio in rows]
    found = starting.table({"results": rows})[2:]
    assert found == ["| a | 2.00 |  |  |", "| b | 2.00 | a | 1.25 × |"]
