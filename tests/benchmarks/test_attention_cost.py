"""The measurement of attention runs, and its table and fits say what was measured."""

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import attention_cost, records
from benchmarks.client import ROOT

pytestmark = pytest.mark.tensorflow("measures TensorFlow")


def test_exponent():
    lengths = np.array([2048, 4096, 32768])
    assert attention_cost.exponent(lengths, 3e-9 * lengths**2.0) == pytest.approx(2)


def test_plain_attention_that_would_not_fit(monkeypatch):
    monkeypatch.setattr(attention_cost, "_available_bytes", lambda: 2**30)
    case = {"attention": "softmax", "length": 32768, "part": "forward", "num_heads": 4}
    assert attention_cost.measure(case) == {"skipped": "does not fit"}


@pytest.mark.slow
def test_a_case_in_its_own_process():
    case = {"attention": "elu", "length": 1024, "part": "forward", "num_heads": 1, "causal": False}
    found = attention_cost.measure({**case, "repeats": 1})
    assert found["seconds"] > 0 and found["bytes"] > 4 * 1024 * 64


# All cases in one process, as each that imports TensorFlow takes seconds.
IN_ONE_PROCESS = """
from benchmarks import attention_cost

attention_cost.measure = lambda case, _: attention_cost._measure_here(case)
attention_cost.main()
"""


@pytest.mark.slow
def test_runs(tmp_path):
    output = tmp_path / "cost.jsonl"
    given = ["--quick", "--lengths", "1024", "--attentions", "softmax", "chunked", "--heads", "1"]
    given += ["--repeats", "1", "--output", str(output)]
    # not in this process: the allocator that counts comes with oneDNN, which not every processor has by default
    subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, *given],
        cwd=ROOT,
        env={**os.environ, **attention_cost.ENVIRONMENT},
        check=True,
    )
    record = records.read(output)
    assert "--lengths 1024" in record["command"]
    results = {(r["attention"], r["part"]): r for r in record["results"]}
    assert len(results) == 4 and all(r["seconds"] > 0 for r in results.values())
    # a million scores of 4 bytes, against a block of them at a time
    for part in ("forward", "step"):
        assert results["softmax", part]["bytes"] > 4 * 2**20
        assert results["chunked", part]["bytes"] < results["softmax", part]["bytes"]
    text = output.with_suffix(".md").read_text()
    assert "| softmax, chunked |" in text and "![cost](cost.png)" in text
    assert output.with_suffix(".png").stat().st_size > 10_000


def test_table():
    points = [(2048, 2.0), (4096, 8.0), (8192, 32.0)]
    results = [
        {"attention": "softmax", "length": length, "part": "step", "seconds": x, "bytes": x * 2**20}
        for length, x in points
    ]
    results.append(
        {"attention": "softmax", "length": 16384, "part": "step", "skipped": "does not fit"}
    )
    lines = attention_cost.table({"attentions": ["softmax"], "results": results})
    assert "| softmax, plain | 2 | 8 | 32 | does not fit | 2.00 |" in lines
