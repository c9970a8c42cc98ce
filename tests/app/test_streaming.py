"""Streaming gives the texts of `generate`, token by token."""

import keras
import keras_hub
import numpy as np
import pytest

import roformer_tf
from roformer_tf.app.generate import StreamingSampler, generate
from tests.models import builders

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"


def make_task(masking):
    tokenizer = roformer_tf.RoFormerTokenizer([*builders.SPECIAL, *CHARACTERS], word_level=False)
    backbone = builders.backbone(
        vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, masking=masking
    )
    preprocessor = roformer_tf.RoFormerCausalLMPreprocessor(tokenizer, sequence_length=64)
    task = roformer_tf.RoFormerCausalLM(backbone, preprocessor)
    bias = np.zeros(backbone.vocabulary_size)
    bias[tokenizer.end_token_id] = -100  # so that no seed ends a text at once
    task.head.output_bias.assign(bias)
    return task


@pytest.fixture(scope="module", params=["causal", pytest.param("unilm", marks=pytest.mark.slow)])
def task(request):
    return make_task(request.param)


def test_the_text_is_that_of_generate(task):
    texts = list(generate(task, "天地玄黄", 40, top_p=0.9, temperature=0.7, seed=1))
    sampler = keras_hub.samplers.TopPSampler(p=0.9, temperature=0.7, seed=1)
    task.compile(sampler=sampler)
    assert texts[-1] == task.generate("天地玄黄", max_length=40)
    assert len(texts) > 1
    assert all(texts[-1].startswith(text) for text in texts)  # characters, so no word changes
    assert [len(text) for text in texts] == sorted(len(text) for text in texts)


def test_the_model_stays_as_it_was_compiled(tmp_path):
    task = make_task("causal")
    task.compile(optimizer=keras.optimizers.SGD(0.5), sampler="greedy")
    optimizer, expected = task.optimizer, task.generate("天地", max_length=30)
    *_, text = generate(task, "天地", 30, seed=1)
    assert text != expected == task.generate("天地", max_length=30)
    assert task.optimizer is optimizer
    for weight in task.weights:  # the stream has no weights of its own
        weight.assign(weight + 1.0)
    assert list(generate(task, "天地", 30, top_p=0))[-1] == task.generate("天地", max_length=30)
    assert (
        type(builders.saved_and_loaded(task, tmp_path).sampler) is keras_hub.samplers.GreedySampler
    )


@pytest.mark.slow
def test_top_p_of_0_is_greedy_search(task):
    *_, text = generate(task, "日月", 30, top_p=0, temperature=2.0, seed=3)
    task.compile(sampler="greedy")
    assert text == task.generate("日月", max_length=30)


def test_a_stream_that_nobody_reads_ends(task):
    task.compile(sampler=StreamingSampler())
    expected = list(generate(task, "天地", 30, seed=5))[-1]
    abandoned = generate(task, "日月", 64, seed=6)
    next(abandoned)  # and is not closed
    assert list(generate(task, "天地", 30, seed=5))[-1] == expected
    abandoned.close()
    closed = generate(task, "日月", 64, seed=6)
    next(closed)
    closed.close()
    assert task.sampler._thread is None
    assert list(generate(task, "天地", 30, seed=5))[-1] == expected


def test_errors_are_those_of_generate(task):
    with pytest.raises(ValueError, match="no room for a new token"):
        list(generate(task, "天地玄黄" * 20, 64))
    with pytest.raises(ValueError, match="Type a prompt first"):
        list(generate(task, " "))


@pytest.mark.skipif(
    keras.config.backend() != "jax", reason="of JAX: tests/models/test_composing.py"
)
def test_on_jax_the_text_comes_at_once():
    task = make_task("causal")
    settings = [(0.9, 0.7, 1), (0.9, 0.7, 2), (0.0, 1.0, 2)]
    texts = [list(generate(task, "天地", 30, *each)) for each in settings]
    for (p, temperature, seed), streamed in zip(settings, texts, strict=True):
        sampler = keras_hub.samplers.TopPSampler(p=p, temperature=temperature, seed=seed)
        task.compile(sampler=sampler)
        assert streamed == [task.generate("天地", max_length=30)]
    assert len({text for (text,) in texts}) == 3
