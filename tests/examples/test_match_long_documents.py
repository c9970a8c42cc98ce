import importlib
import lzma

import numpy as np
import pytest

from tests.examples.conftest import write_lines


@pytest.fixture
def example():
    return importlib.import_module("match_long_documents")


class Scorer:
    """A classifier that scores a pair by the length of its second text."""

    def predict(self, pairs, batch_size, verbose):
        return np.array([[len(second)] for second in pairs[1]], "float32")


def test_the_label_says_which_text_is_closer(example, tmp_path):
    rows = [{"A": "a", "B": "b", "C": "c", "label": label} for label in "BC"]
    write_lines(tmp_path / "x.jsonl.xz", rows)
    triplets = example.read_triplets(tmp_path / "x.jsonl.xz")
    assert triplets == [("a", "b", "c"), ("a", "c", "b")]
    assert example.read_triplets(tmp_path / "x.jsonl.xz", 1) == triplets[:1]
    (first, second), labels = example.make_pairs(triplets)
    assert first == ["a"] * 4 and second == ["b", "c", "c", "b"] and labels.tolist() == [1, 0, 1, 0]


def test_triplet_accuracy_is_the_share_with_the_closer_text_first(example):
    triplets = [("a", "xxx", "x"), ("a", "x", "xx"), ("a", "xx", "x"), ("a", "x", "x")]
    assert example.triplet_accuracy(Scorer(), triplets, 8) == 0.5  # a tie is not right


def test_missing_data_is_named(run, tmp_path):
    with pytest.raises(SystemExit, match=r"There is no .*train\.jsonl\.xz"):
        run("match_long_documents", "--data", tmp_path)


@pytest.mark.slow
def test_on_real_cases(run, shared_dir, one_layer, tmp_path):
    for name in ("train", "valid"):
        with lzma.open(shared_dir / "data" / "cail2019_scm" / f"{name}.jsonl.xz", "rt") as file:
            lines = [next(file) for _ in range(4)]
        with lzma.open(tmp_path / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(lines)
    options = ("--data", tmp_path, "--model", one_layer, "--epochs", 1, "--sequence-length", 64)
    assert "4 unseen triplets" in run("match_long_documents", *options)
