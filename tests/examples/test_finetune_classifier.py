import importlib

import pytest
import tensorflow as tf


@pytest.fixture
def example():
    return importlib.import_module("finetune_classifier")


@pytest.fixture
def tables(tmp_path):
    """Two files of labelled reviews, tab-separated."""
    splits = importlib.import_module("reviews").load_reviews()
    paths = []
    for part, count in (("train", 60), ("test", 20)):
        texts, labels = splits[part]
        rows = [f"{'坏好'[label]}\t{text}" for text, label in zip(texts[:count], labels)]
        path = tmp_path / f"{part}.tsv"
        path.write_text("label\ttext\n" + "\n".join(rows) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


@pytest.mark.slow
def test_files_of_texts_are_learned_and_exported(run, tables, one_layer, tmp_path):
    out = run(
        "finetune_classifier",
        *("--model", one_layer, "--train", tables[0], "--test", tables[1], "--epochs", 1),
        *("--from-scratch", "--pooling", "cls"),
        *("--sequence-length", 32, "--export", tmp_path / "served"),
    )
    assert "training texts, 20 test texts" in out and "of the most frequent class" in out
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    answer = served(texts=tf.constant(["房间很干净", ""]))
    assert {label.decode() for label in answer["label"].numpy()} <= {"好", "坏"}


def test_the_reviews_are_the_default(example):
    """Fine-tuned by `demo.py`, from the checkpoint's weights and from random ones."""
    data, labels = example.load_data()
    assert set(data) == {"train", "validation", "test"} and len(labels) == 2
    for texts, y in data.values():
        assert len(texts) == len(y) > 1000 and set(y) == {0, 1}


def test_validation_texts_are_no_training_texts(example):
    texts = [f"text {i}" for i in range(500)]
    (train, train_labels), (validation, _) = example.split_off(texts, [t[-1] for t in texts])
    assert set(train) | set(validation) == set(texts) and not set(train) & set(validation)
    assert train_labels == [t[-1] for t in train]
    assert 25 < len(validation) < 80


def test_bad_files_are_named(run, tables, tmp_path):
    arguments = ("--train", tables[0], "--test")
    with pytest.raises(FileNotFoundError, match="nothing.tsv"):
        run("finetune_classifier", *arguments, tmp_path / "nothing.tsv")
    (tmp_path / "wrong.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(SystemExit, match="columns label and text"):
        run("finetune_classifier", *arguments, tmp_path / "wrong.tsv")
    (tmp_path / "new.tsv").write_text("label\ttext\n怪\t好\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="Labels that no training text has: .*怪"):
        run("finetune_classifier", *arguments, tmp_path / "new.tsv")
    with pytest.raises(SystemExit):
        run("finetune_classifier", "--train", tables[0])
