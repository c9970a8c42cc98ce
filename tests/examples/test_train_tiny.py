import importlib
import json
import lzma

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import inspect_checkpoint


@pytest.fixture
def train_tiny(examples):
    return importlib.import_module("train_tiny")


@pytest.fixture
def tokenizer():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"天气好不很房间干净"]
    return roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)


def test_vocabulary_has_special_tokens_then_pieces_then_characters_then_words(train_tiny):
    texts = ["公司的合同，公司ABC2015。\n"] * 5 + ["罕见 公司"]
    vocabulary = train_tiny.make_vocabulary(texts, size=10**6)
    assert vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(vocabulary)) == len(vocabulary)
    place = {token: i for i, token in enumerate(vocabulary)}
    assert place["z"] < place["##z"] < place["公"] < place["合同"]
    # by frequency; the last two are as frequent as each other
    assert place["公司"] < place["abc2015"] < place["合同"]
    assert "罕" not in place and "A" not in place and "\n" not in place and " " not in place
    assert train_tiny.make_vocabulary(texts[::-1], size=10**6) == vocabulary
    assert train_tiny.make_vocabulary(texts, size=120) == vocabulary[:120]


def test_rows_hold_every_token_once(train_tiny, tokenizer):
    text = "天气很好房间不干净" * 5
    rows = train_tiny.make_rows(tokenizer, [text, "好"], lambda _: 12)
    assert all(row[0] == 2 and row[-1] == 3 and len(row) <= 12 for row in rows)
    assert sum((row[1:-1] for row in rows), []) == tokenizer([text])[0]


def test_masked_batches_can_be_put_back_together(train_tiny, tokenizer, rng):
    rows = [[2, *rng.integers(5, 14, n).tolist(), 3] for n in rng.integers(10, 120, 40)]
    found = []
    changed = chosen = 0
    for count, data in train_tiny.masked_batches(rows, tokenizer, 512, training=False):
        batches = list(data.as_numpy_iterator())
        assert len(batches) == count
        for inputs, labels, weights in batches:
            ids = inputs["token_ids"].copy()
            for row, positions, tokens, real in zip(
                ids, inputs["mask_positions"], labels, weights > 0
            ):
                changed += (row[positions[real]] != tokens[real]).sum()
                chosen += real.sum()
                row[positions[real]] = tokens[real]
            found += [row[mask > 0].tolist() for row, mask in zip(ids, inputs["padding_mask"])]
    assert sorted(found) == sorted(rows)
    tokens = sum(len(row) - 2 for row in rows)
    assert chosen == pytest.approx(0.15 * tokens, rel=0.1)
    assert changed >= 0.7 * chosen  # 80 % masked, 10 % random


def test_unigram_guess_is_the_cross_entropy_of_the_frequencies(train_tiny, tokenizer):
    train = [[2, 5, 5, 5, 6, 3], [2, 6, 7, 5, 3]]
    held_out = [[2, *[5] * 20, 3]]
    ((_, data),) = train_tiny.masked_batches(held_out, tokenizer, 512, training=False)
    guess = train_tiny.unigram_guess(train, data, 14)
    assert guess["token"] == 5 and guess["accuracy"] == 1.0
    # 4 of 7 tokens, one added to each of the 9 that are not special
    assert guess["loss"] == pytest.approx(-np.log(5 / 16), rel=1e-12)


@pytest.mark.slow
def test_training_writes_a_checkpoint_that_loads(train_tiny, run, tmp_path):
    texts = importlib.import_module("reviews").load_reviews()["train"][0]
    for source, part in (("wiki", texts[:1200]), ("law", texts[1200:2400])):
        with lzma.open(tmp_path / f"{source}.jsonl.xz", "wt", encoding="utf-8") as file:
            for i in range(0, len(part), 20):
                row = {
                    "source": source,
                    "title": f"{source}{i}",
                    "text": "\n".join(part[i : i + 20]),
                }
                file.write(json.dumps(row) + "\n")
    folder = tmp_path / "model"
    sizes = ("--layers", 1, "--heads", 2, "--hidden", 32, "--intermediate", 64, "--embedding", 16)
    out = run(
        train_tiny.main,
        *("--data", tmp_path, "--output", folder, "--steps", 6, "--epochs", 2),
        *("--max-documents", 60, "--vocabulary-size", 1500, "--tokens-per-batch", 512),
        *("--dtype", "float32", *sizes),
    )
    assert "unigram" in out
    report = inspect_checkpoint(folder)
    assert report.complete and report.family == "roformer"
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert [point["step"] for point in record["curve"]] == [3, 6]
    assert record["held_out"]["all"]["loss"] < np.log(1500) + 0.5
    assert (folder / "loss.png").stat().st_size > 1000
    masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(str(folder))
    assert masked_lm.backbone.dropout == 0.1  # for those who fine-tune it


def test_missing_data_is_named(train_tiny, run, tmp_path):
    with pytest.raises(SystemExit, match=r"There is no .*wiki\.jsonl\.xz"):
        run(train_tiny.main, "--data", tmp_path)
