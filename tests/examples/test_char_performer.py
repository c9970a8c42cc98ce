import importlib
import json
import lzma

import numpy as np
import pytest

SMALL = ("num_layers=1", "hidden_dim=16", "num_heads=2", "length=32", "batch_size=2", "steps=4") + (
    "points=2",
    "looks=1",
    "look_windows=2",
    "learning_rate=1e-3",
)


@pytest.fixture
def example():
    return importlib.import_module("char_performer")


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "data" / "enwik8_prefix"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for part, size in (("train", 3000), ("valid", 300)):
        with lzma.open(folder / f"{part}.bin.xz", "wb") as file:
            file.write(rng.integers(0, 256, size, "uint8").tobytes())
    return folder


def test_windows_are_drawn_from_the_seed_and_the_step(example, texts):
    text = example.read_bytes(texts / "train.bin.xz")
    settings = {**example.SETTINGS, "length": 16, "batch_size": 3}

    def first(seed):
        return [
            (inputs["token_ids"].numpy(), labels.numpy())
            for inputs, labels in example.training_data(text, settings, seed).take(2)
        ]

    batches = first(0)
    for (tokens, labels), (again, _), (other, _) in zip(batches, first(0), first(1)):
        np.testing.assert_array_equal(tokens, again)
        assert (tokens != other).any()
        np.testing.assert_array_equal(tokens[:, 1:], labels[:, :-1])
        assert all(row.astype("uint8").tobytes() in text.tobytes() for row in labels)
    assert (batches[0][0] != batches[1][0]).any()


def test_every_held_out_byte_but_the_first_is_predicted_once(example, texts):
    text = example.read_bytes(texts / "valid.bin.xz")
    settings = {**example.SETTINGS, "length": 13, "batch_size": 4}
    labels = np.concatenate([y.numpy().ravel() for _, y in example.held_out_data(text, settings)])
    np.testing.assert_array_equal(labels, text[1 : 1 + 299 // 13 * 13])
    inputs = [x["token_ids"].numpy() for x, _ in example.held_out_data(text, settings, 5)]
    assert sum(map(len, inputs)) == 5


@pytest.mark.slow
def test_runs_are_kept_and_reported(run, texts, tmp_path):
    file = tmp_path / "results.jsonl"
    common = ("char_performer", "--data", texts.parent, "--results", file, "--seeds", 0)
    arguments = (*common, "--models", "favor-rotary", "softmax-learned", "--set", *SMALL)
    out = run(*arguments)
    assert "favor-rotary-0: " in out and "softmax-learned-0: " in out
    record = json.loads(file.read_text().splitlines()[0])
    result = record["result"]
    assert record["name"] == "favor-rotary-0"
    assert result["training"]["step"] == [2, 4] and result["held_out"]["step"] == [4]
    # bytes drawn evenly: 8 bits each
    assert all(7 < bits < 10 for bits in (*result["training"]["bits"], result["final_bits"]))

    assert "..." not in run(*arguments)
    assert "results.md" in run(*common, "--report")
    report = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| Performer with RoPE, eq. 19 | 8." in report and "2 runs" in report
    with pytest.raises(SystemExit, match="other settings"):
        run(*arguments, "learning_rate=0.5")


def test_missing_data_is_named(run, tmp_path):
    with pytest.raises(SystemExit, match="There is no .*train.bin.xz: --data must name"):
        run("char_performer", "--data", tmp_path, "--results", tmp_path / "a.jsonl")
