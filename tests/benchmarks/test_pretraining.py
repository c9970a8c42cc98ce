"""The measurements of pretraining run, at sizes that take seconds, and their tables say what was measured."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import pretraining_measure, pretraining_report
from benchmarks.pretraining_original import mask
from benchmarks.sizes import Sizes

TINY = Sizes(layers=1, heads=2, width=16, intermediate=24, vocabulary=60)
WORDS = ["天", "地", "玄", "黄", "宇宙", "洪荒", "日", "月"]


@pytest.fixture
def setting(tmp_path):
    """60 short documents and 20 long ones."""
    rng = random.Random(0)
    texts = [
        "。".join("".join(rng.choices(WORDS, k=6)) for _ in range(sentences))
        for sentences in [2] * 60 + [40] * 20
    ]
    lines = [json.dumps({"text": text, "source": "test"}) + "\n" for text in texts]
    (tmp_path / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    vocabulary = tmp_path / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "。", *WORDS]
    vocabulary.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return replace(
        pretraining_measure.SMALL,
        sizes=TINY,
        alone=None,
        end_to_end_sizes=TINY,
        end_to_end=(4, 32),
        steps=dict.fromkeys(pretraining_measure.END_TO_END, 2),
        input_batches=2,
        data=tmp_path,
        vocabulary=vocabulary,
    )


def measure(setting, part, models=None):
    results = {}
    measurement = pretraining_measure.PretrainingMeasurement(
        setting, 1, 0, say=lambda line: None, models=models
    )
    measurement.run(part, results)
    return results


@pytest.mark.tensorflow("pretraining is TensorFlow")
def test_full_projection_has_the_loss_and_gradients_of_the_masked_only():
    from benchmarks.pretraining_ours import compare_projections

    found = compare_projections(TINY, seed=1, rows=3, length=24)
    # sums of up to 72 float32 terms in another order: some roundings of 6e-8
    assert found["loss"] < 1e-6
    assert found["gradients"] < 5e-6, found["worst"]
    assert found["variables"] > 15


def test_masks_of_the_original():
    np.random.seed(1)  # noqa: NPY002
    ids = [7] * 20000
    shown, labels = map(np.array, mask(ids, 1000, mask_id=4))
    chosen = labels > 0
    np.testing.assert_array_equal(labels[chosen], 7)
    np.testing.assert_array_equal(shown[~chosen], 7)
    # three standard deviations of 20000 draws
    np.testing.assert_allclose(chosen.mean(), 0.15, atol=0.008)
    np.testing.assert_allclose((shown == 4).mean(), 0.12, atol=0.007)
    np.testing.assert_allclose((shown[chosen] == 7).mean(), 0.1, atol=0.017)


def test_documents_that_are_not_there(setting, tmp_path):
    results = measure(replace(setting, data=tmp_path / "nowhere"), "end_to_end")
    assert "nowhere" in results["skipped"]
    record = {"results": {"end_to_end": results}}
    assert "nowhere" in pretraining_report.tables(record)["end_to_end"][0]


def test_tables():
    original = {"seconds": [4.0, 6.0], "beside": [4.0, 6.0], "peak_mb": [2048.0, 2048.0]}
    ours = {"seconds": [2.0, 2.0], "beside": [4.0, 6.0], "peak_mb": [1024.0, 1024.0]}
    made = {"sizes": vars(TINY), "alternating": True, "cases": {"original": original, "ours": ours}}
    made = pretraining_report.tables({"results": {"pretraining": {"4 x 512": made}}})
    row = "| 4 × 512 | roformer_tf, float32, adamw | 2.00 s | 1,024 | 2.50 | 2.00 | 1.00 GB |"
    assert row in made["pretraining"]
    assert "| ≥ 1.33 | 2.50 (4 × 512) | yes |" in made["pretraining_aims"][2]


def test_time_of_the_input_between_turns_is_charged():
    case = {"tokens": [100.0, 200.0], "seconds": [1.0, 1.0]}
    assert pretraining_report.speed({**case, "cpu_seconds_while_waiting": [0.5, 0.5]}) == 100


@pytest.mark.tensorflow("pretraining is TensorFlow")
@pytest.mark.slow
@pytest.mark.oracle
def test_small_measurements(setting):
    parts = {"pretraining": ("ours", "original"), "end_to_end": ("ours_packed", "original")}
    results = {part: measure(setting, part, models) for part, models in parts.items()}
    for part, models in parts.items():
        [measured] = [results[part]] if "cases" in results[part] else results[part].values()
        assert set(measured["cases"]) == set(models)
    for case in results["end_to_end"]["cases"].values():
        assert 0 < case["tokens"][0] <= case["places"][0] <= 2 * 4 * 32
        assert case["input"]["tokens"] > 0
    record = {"results": json.loads(json.dumps(results))}
    assert set(pretraining_report.tables(record)) == {*results, "pretraining_aims"}
