"""Compares with recorded outputs of bert4keras in the shared fixtures: 408 strings, 164 pairs, 37,666 tokens."""

import json

import pytest
import tensorflow as tf

from roformer_tf.text import RoFormerTokenizer, load_vocabulary, simplify_vocabulary

CONFIGS = {
    "word": {},
    "char": {"word_level": False},
    "cased": {"word_level": False, "lowercase": False},
    "word_short": {"word_maxlen": 5},
    "no_special": {"word_level": False, "start_token": None, "end_token": None},
}


@pytest.fixture(scope="module")
def folder(shared_dir):
    return shared_dir / "golden" / "tokenizer"


@pytest.fixture(scope="module")
def golden(folder):
    return {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def make(folder):
    made = {}

    def get(name):
        if name not in made:
            made[name] = RoFormerTokenizer(folder / "vocab.txt", **CONFIGS[name])
        return made[name]

    return get


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "word_short")) for n in CONFIGS],
)
def test_ids(name, make, golden):
    tokenizer = make(name)
    cases = golden["single"]
    ids, segments = tokenizer.encode([case["text"] for case in cases])
    for case, ours, our_segments in zip(cases, ids, segments, strict=True):
        theirs = case[name]["ids"] if name in ("word", "char") else case[name]
        assert ours == theirs, ascii(case["text"])
        assert our_segments == [0] * len(ours)


@pytest.mark.parametrize("name", ["word", "char"])
def test_offsets(name, make, golden):
    cases = golden["single"]
    compared = 0
    _, starts, ends = make(name).tokenize_with_offsets([case["text"] for case in cases])
    for case, start, end in zip(cases, starts, ends, strict=True):
        places = case[name]["rematch"]
        if "error" in places or "\u0130" in case["text"]:
            continue  # the original fails, or counts in the longer lower-cased text
        assert start == [place[0] for place in places[1:-1]], ascii(case["text"])
        assert end == [place[-1] + 1 for place in places[1:-1]], ascii(case["text"])
        compared += 1
    assert compared > 380


def test_detokenize(make, golden):
    tokenizer = make("char")
    cases = [(c[m]["ids"], c[m]["decode"]) for c in golden["single"] for m in ("word", "char")]
    cases += [(case["ids"], case["text"]) for case in golden["misc"]["decode"]]
    cases = [(ids, text) for ids, text in cases if not isinstance(text, dict)]
    ours = tokenizer.detokenize(
        tf.ragged.constant([ids for ids, _ in cases], tf.int32), separator=""
    )
    assert ours == [text for _, text in cases]


@pytest.mark.parametrize("name", ["word", "char", "no_special"])
def test_pairs(name, make, golden):
    tokenizer = make(name)
    for case in golden["pairs"]:
        arguments = {key: case[key] for key in ("maxlen", "pattern", "truncate_from")}
        if "error" in case[name]:
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
                tokenizer.encode(case["first"], case["second"], **arguments)
            continue
        ids, segments = tokenizer.encode(case["first"], case["second"], **arguments)
        assert [ids.numpy().tolist(), segments.numpy().tolist()] == case[name], case


@pytest.mark.parametrize("name", ["word", "char"])
def test_single_texts_truncated(name, make, golden):
    tokenizer = make(name)
    for case in golden["misc"]["tokenize_maxlen"]:
        ids, _ = tokenizer.encode(case["text"], maxlen=case["maxlen"])
        tokens = case[name]
        theirs = [tokenizer._vocabulary.ids.get(t, tokenizer.unk_token_id) for t in tokens]
        assert ids.numpy().tolist() == theirs, case


def test_vocabulary(make, golden, folder, tmp_path):
    vocab = golden["vocab"]
    tokenizer = make("char")
    assert tokenizer.vocabulary_size() == vocab["size"]
    names = {"pad": "pad", "unk": "unk", "mask": "mask", "start": "start", "end": "end"}
    assert {n: getattr(tokenizer, f"{n}_token_id") for n in names} == vocab["special"]
    simplified = vocab["simplified"]
    _, keep = simplify_vocabulary(folder / "vocab.txt", simplified["startswith"])
    assert keep == simplified["keep_tokens"]
    for case in vocab["load_vocab_quirks"]:
        path = tmp_path / "vocab.txt"
        path.write_bytes(case["content"].encode())
        assert load_vocabulary(path) == case["token_dict"], case
