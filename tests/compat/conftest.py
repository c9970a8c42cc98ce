"""Runs the text of one program here, with changed import lines, and on bert4keras itself."""

import re
from pathlib import Path

import pytest

from roformer_tf.compat.bert4keras import optimizers

collect_ignore = ["programs"]  # they import bert4keras
PROGRAMS = Path(__file__).parent / "programs"
IMPORTS = re.compile(r"^( *from) (bert4keras|keras)\b", re.MULTILINE)
COMMON = re.compile(r"^from common import (\([^)]*\)|.*)$", re.MULTILINE)
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}


def text_of(name):
    """Returns the text of a program, with `common.py` put before it."""
    parts = [(PROGRAMS / f"{part}.py").read_text("utf-8") for part in ("common", name)]
    return COMMON.sub("", "\n".join(parts))


@pytest.fixture(scope="session")
def folders(original, tmp_path_factory, seed):
    """Original folders of random weights of each model, written by bert4keras."""
    text = "".join(dict.fromkeys(text_of("classify")))
    chars = [c for c in text if "\u4e00" <= c <= "\u9fff" or c in "，。！？"]
    vocabulary = [*TOKENS, *chars, "天气", "公园", "酒店", "play", "##ing", "##er"]
    made = {}
    for name in ("bert", "roformer", "roformer_v2", "deep_roformer"):
        made[name] = str(tmp_path_factory.mktemp(name))
        model = name.removeprefix("deep_")
        act = "relu" if model == "roformer_v2" else "gelu"
        config = {**CONFIG, "vocab_size": len(vocabulary), "hidden_act": act}
        config["num_hidden_layers"] = 1 if name == model else 2
        original.make_checkpoint(made[name], config, seed, model, vocabulary=vocabulary)
    return made


@pytest.fixture
def both(original, monkeypatch):
    """Runs a text here, as with TF_KERAS=1, and in bert4keras; returns both results."""
    monkeypatch.setattr(optimizers, "Adam", optimizers.BertAdam)

    def both(text, **arguments):
        expected, names = original.run_program(text, arguments), {}
        exec(IMPORTS.sub(r"\1 roformer_tf.compat.\2", text), names)
        return names["run"](**arguments), expected

    return both
