"""The tokenizer that `export_onnx` writes, in plain Python, gives the ids of `RoFormerTokenizer`."""

import importlib.util
import sys

import numpy as np
import pytest

import roformer_tf
from roformer_tf.export.export_onnx import write_client
from tests.text.conftest import MODES, VOCABULARY

COUNT = 700


def client(folder, tokenizer, **options):
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer, **options)
    write_client(folder, preprocessor)
    spec = importlib.util.spec_from_file_location("exported_tokenizer", folder / "tokenizer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "mode",
    [m if m == "char" else pytest.param(m, marks=pytest.mark.slow) for m in MODES],
)
def test_ids(mode, tokenizers, texts, tmp_path):
    lines = texts["real"][:COUNT] + texts["hostile"][:COUNT]
    exported = client(tmp_path, tokenizers(mode))
    expected = tokenizers(mode)(lines)
    # a lone surrogate cannot come by way of a command line or a file in UTF-8
    for line, ids in zip(lines, expected, strict=True):
        if line == line.encode(errors="replace").decode():
            assert exported.tokenize(line) == ids, line


def test_marked_tokens(texts, tmp_path):
    tokenizer = roformer_tf.RoFormerTokenizer(
        VOCABULARY, word_level=False, special_tokens_in_strings=True
    )
    tokenizer.add_tokens(["<A>", "<A>b", "追一"])
    marks = ["<A>b", "[MASK]", "追一", "<A>", "[SEP", ""]
    lines = [f"{line[:5]}{mark}{line}{mark}" for line in texts["real"][:50] for mark in marks]
    exported = client(tmp_path, tokenizer)
    assert [exported.tokenize(line) for line in lines] == tokenizer(lines)


@pytest.mark.parametrize("truncate_from, pair_segments", [("right", True), ("left", False)])
def test_truncation_and_segments(truncate_from, pair_segments, tokenizers, texts, rng, tmp_path):
    tokenizer = tokenizers("char")
    options = {"truncate_from": truncate_from, "pair_segments": pair_segments}
    exported = client(tmp_path, tokenizer, sequence_length=20, **options)
    first, second = np.split(rng.permutation(texts["real"])[:400], 2)
    first, second = first.tolist(), second.tolist()
    for segments in ((first,), (first, second)):
        expected = tokenizer.encode(*segments, maxlen=20, truncate_from=truncate_from)
        found = [exported.encode(*row) for row in zip(*segments, strict=True)]
        assert [ids for ids, _ in found] == expected[0]
        wanted = [[i * pair_segments for i in row] for row in expected[1]]
        assert [segment_ids for _, segment_ids in found] == wanted


def test_needs_the_standard_library_only(tokenizers, tmp_path):
    source = (tmp_path / "tokenizer.py") if client(tmp_path, tokenizers("char")) else None
    imported = {
        line.split()[1] for line in source.read_text().splitlines() if line[:4] in ("from", "impo")
    }
    assert imported <= sys.stdlib_module_names
