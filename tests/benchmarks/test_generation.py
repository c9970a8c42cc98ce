"""The measurement of generation runs, and its table says what was measured."""

import pytest

from benchmarks import generation, records
from benchmarks.generation_worker import GenerationWorker

pytestmark = pytest.mark.tensorflow("measures TensorFlow")


@pytest.mark.slow
def test_runs(tmp_path, monkeypatch, capsys, run_here):
    pytest.importorskip("torch", reason="needs the extra hf: torch")
    pytest.importorskip("transformers", reason="needs the extra hf: transformers")
    run_here(generation, GenerationWorker)
    monkeypatch.setattr(generation, "QUICK_CASES", ((2, 9),))
    output = tmp_path / "speed.jsonl"
    given = ["--quick", "--sides", "ours", "hugging_face", "--repeats", "1", "--new-tokens", "4"]
    generation.main([*given, "--output", str(output)])
    record = records.read(output)
    assert "--new-tokens 4" in record["command"]
    assert [result["side"] for result in record["results"]] == ["ours", "hugging_face"]
    for result in record["results"]:
        assert result["new_tokens"] == [1, 2, 4] and min(result["seconds"]) > 0
    text = output.with_suffix(".md").read_text()
    assert "| 2 | 9 | ours |" in text and "| 2 | 9 | Hugging Face" in text
    assert text.splitlines()[-1] in capsys.readouterr().out


def test_rates():
    # 0.5 s for prompt and first token, 10 ms each for the next 63, 20 ms each for the last 64
    ours = {"side": "ours", "batch": 8, "new_tokens": [1, 64, 128]}
    ours["seconds"] = [0.5, 0.5 + 63 * 0.01, 0.5 + 63 * 0.01 + 64 * 0.02]
    rates = generation.rates(ours, 128)
    assert rates["prompt_s"] == 0.5
    assert rates["early_ms"] == pytest.approx(10) and rates["late_ms"] == pytest.approx(20)
    assert rates["tokens_per_s"] == pytest.approx(8 * 128 / ours["seconds"][-1])
    # of one text and few tokens: 1 s each, 8 texts one after the other
    few = {"side": "bert4keras", "batch": 8, "new_tokens": [1, 4, 8], "seconds": [1.0, 4.0, 8.0]}
    rates = generation.rates(few, 128)
    assert rates["prompt_s"] == pytest.approx(8) and rates["late_ms"] == pytest.approx(8000)
    assert rates["tokens_per_s"] == pytest.approx(1)


def test_table():
    common = {"batch": 1, "prompt": 32, "prompt_s": 0.1, "early_ms": 9.0, "late_ms": 9.5}
    results = [
        {**common, "side": "ours", "tokens_per_s": 100.0, "peak_mb": 300.4},
        {**common, "side": "bert4keras", "tokens_per_s": 8.0, "peak_mb": 200},
    ]
    lines = generation.table({"new_tokens": 128, "results": results})
    assert "| 1 | 32 | ours | 100 |  | 0.1 | 9 | 9.5 | 300 |" in lines
    assert "| 1 | 32 | bert4keras | 8 | 12.5 × | 0.1 | 9 | 9.5 | 200 |" in lines
    assert "one text and 8 new tokens" in lines[-1]
