"""Graphs hold attention in chunks only where inputs may be long."""

import numpy as np
import pytest

import roformer_tf
from roformer_tf.layers import self_attention
from tests.models import builders


@pytest.fixture
def chunked(monkeypatch, calls_of):
    """Attention in chunks above 16 tokens; returns the list of its calls."""
    monkeypatch.setattr(self_attention.SelfAttention, "chunked_above", 16)
    return calls_of(self_attention, "chunked_attention")


@pytest.mark.parametrize("length", [8, pytest.param(17, marks=pytest.mark.slow)])
def test_fit_on_texts(chunked, length):
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(
        builders.tokenizer(), sequence_length=length
    )
    # the last block's attention computes [CLS] alone, so it needs no chunks
    model = roformer_tf.RoFormerTextClassifier(builders.backbone(num_layers=2), 3, preprocessor)
    model.compile(optimizer="sgd")
    chunked.clear()

    def is_chunked(call, *args, **kwargs):
        chunked.clear()
        call(*args, **kwargs)
        return bool(chunked)

    texts, labels = ["天地玄黄", "天"], np.array([0, 2])
    inputs = builders.inputs(np.random.default_rng(0), batch=2, length=20)
    assert is_chunked(model.fit, texts, labels, verbose=0) == (length > 16)
    # What a preprocessor did not make may have any length
    assert is_chunked(model.fit, inputs, labels, verbose=0)
    assert is_chunked(model.fit, texts, labels, verbose=0) == (length > 16)
    assert is_chunked(model.train_on_batch, inputs, labels)


def test_predict(chunked):
    """Short inputs have a graph of their own. The first long one makes a graph for any length."""
    model = builders.task("classifier", preprocessor=None)
    inputs = builders.inputs(np.random.default_rng(0), batch=2, length=20)
    short = {name: array[:, :16] for name, array in inputs.items()}
    expected = [np.asarray(model(given)) for given in (short, inputs)]
    chunked.clear()
    found = [model.predict_on_batch(short)]
    assert not chunked
    found.append(model.predict_on_batch(inputs))
    assert chunked
    chunked.clear()
    found += [model.predict(given, verbose=0) for given in (short, inputs)]
    assert not chunked  # nothing is traced again
    for i, logits in enumerate(found):
        # float32 sums in another order
        np.testing.assert_allclose(logits, expected[i % 2], rtol=1e-5, atol=1e-6)


def test_generate(chunked):
    model = builders.task("causal_lm", preprocessor={"sequence_length": 24})
    model.compile(sampler="greedy")
    chunked.clear()
    text = model.generate("天地", max_length=16)
    assert not chunked
    longer = model.generate("天地", max_length=24)
    assert chunked
    assert longer.startswith(text)
