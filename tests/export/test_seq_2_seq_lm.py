"""Translation in a process with nothing but TensorFlow and TensorFlow Text."""

import numpy as np
import pytest

from roformer_tf.export import export_saved_model
from roformer_tf.samplers import BeamSearchSampler
from tests.export.conftest import assert_close, encoded
from tests.export.server import Server
from tests.models.seq_2_seq import inputs, translator

# a translation may have 50 tokens more than its source, so a wrong choice would show
TEXTS = ["a dog ran", "", "a cat and a dog and a cat", "ein Hund"]


@pytest.fixture(scope="module")
def ask_with_text(tmp_path_factory):
    # TensorFlow Text itself imports Keras
    server = Server(tmp_path_factory.mktemp("server"), "keras", "tensorflow_text")
    yield server
    server.close()


@pytest.mark.slow  # a beam search is traced twice
def test_translations(ask_with_text, tmp_path, rng):
    task = translator(num_layers=1)
    task.compile(sampler=BeamSearchSampler(2))
    folder = export_saved_model(task, tmp_path / "served")
    answer = ask_with_text(folder, texts=encoded(TEXTS))
    assert [x.decode() for x in answer["translations"]] == task.generate(TEXTS)
    assert ask_with_text(folder, texts=[])["translations"].shape == (0,)
    # a byte that is no UTF-8 is an unknown character, as in Python
    answer = ask_with_text(folder, texts=[b"a \xff dog"])
    assert answer["translations"][0].decode() == task.generate(["a \ufffd dog"])[0]

    given = inputs(rng)
    assert_close(ask_with_text(folder, "token_ids", **given)["logits"], np.float32(task(given)))
    loaded = {name.split(".")[0] for name in ask_with_text.modules()}
    assert not loaded & {"roformer_tf", "keras_hub", "sentencepiece"}
