"""Scores of texts: the SavedModel against `RoFormerCausalLM.score` and NumPy."""

import keras_hub
import numpy as np
import pytest

from roformer_tf import RoFormerCausalLM
from roformer_tf.export import export_saved_model
from tests.export.conftest import assert_close, encoded, one_segment
from tests.oracles.numpy_roformer import softmax


def assert_same_scores(answer, expected, tolerance=1e-5):
    assert set(answer) == {"log_likelihood", "num_tokens", "perplexity"}
    assert answer["num_tokens"].tolist() == expected["num_tokens"].tolist()
    assert_close(answer["log_likelihood"], expected["log_likelihood"], tolerance)
    assert_close(np.log(answer["perplexity"]), np.log(expected["perplexity"]), tolerance)


@pytest.fixture(scope="module", params=["causal", "causal random", "unilm", "unilm bfloat16"])
def exported(request, build, tmp_path_factory):
    """A task, the folder of its SavedModel, and the tolerance of its numbers."""
    masking, *kind = request.param.split()
    dtype = "mixed_bfloat16" if kind == ["bfloat16"] else None
    options = {"num_segments": 0} if masking == "causal" else {}
    task = build(RoFormerCausalLM, {"masking": masking, "dtype": dtype, **options})
    random = keras_hub.samplers.RandomSampler(seed=7, temperature=2.0)
    task.compile(sampler=random if kind == ["random"] else "greedy")
    folder = export_saved_model(task, tmp_path_factory.mktemp(masking) / "served")
    # bfloat16 logits: where they are rounded differs between two compilations
    return task, folder, 1e-2 if dtype else 1e-5


@pytest.mark.parametrize("exported", ["causal random", "unilm bfloat16"], indirect=True)
@pytest.mark.slow
def test_scores(exported, ask, texts):
    task, folder, tolerance = exported
    texts = ["", *texts]
    assert_same_scores(ask(folder, texts=encoded(texts)), task.score(texts), tolerance)
    pairs = texts[:50], texts[50:100]
    answer = ask(folder, "pairs", first=encoded(pairs[0]), second=encoded(pairs[1]))
    assert_same_scores(answer, task.score(pairs), tolerance)
    assert {x.shape for x in ask(folder, texts=[]).values()} == {(0,)}


@pytest.mark.parametrize("exported", ["causal"], indirect=True)
def test_one_text_by_hand(exported, ask):
    task, folder, _ = exported
    ids = task.preprocessor.tokenizer.encode("很好，好")[0]
    inputs = one_segment([ids])
    logits = np.float64(ask(folder, "token_ids", **inputs)["logits"])
    assert_close(logits, np.float32(task(inputs)))
    count = len(ids) - 1
    expected = np.log(softmax(logits)[0, np.arange(count), ids[1:]]).sum()
    answer = ask(folder, texts=encoded(["很好，好"]))
    assert_close(answer["log_likelihood"], [expected])
    assert answer["num_tokens"].tolist() == [count]
    assert_close(answer["perplexity"], [np.exp(-expected / count)])


@pytest.mark.parametrize(
    "exported", ["causal", pytest.param("unilm", marks=pytest.mark.slow)], indirect=True
)
def test_generate(exported, ask, texts):
    task, folder, _ = exported
    texts = ["", *(text[: 3 + i % 9] for i, text in enumerate(texts[:40]))]  # two batches
    expected = task.generate(texts, max_length=24)
    answer = ask(folder, "generate", texts=encoded(texts), max_length=24)
    assert [text.decode() for text in answer["texts"]] == expected
    assert any(len(text) > 9 for text in expected)
    assert ask(folder, "generate", texts=[], max_length=24)["texts"].shape == (0,)
    with pytest.raises(RuntimeError, match="no room for a new token"):
        ask(folder, "generate", texts=encoded(texts), max_length=5)
    with pytest.raises(RuntimeError, match="`max_length` must be at least 2"):
        ask(folder, "generate", texts=[], max_length=0)


@pytest.mark.parametrize("exported", ["causal random"], indirect=True)
@pytest.mark.slow
def test_draws_continue(exported, ask):
    """A sampler with a seed continues its draws from call to call, equally in every process."""
    task, folder, _ = exported
    drawn = [ask(folder, "generate", texts=encoded(["很好"]), max_length=20)["texts"] for _ in "12"]
    assert drawn[0] != drawn[1]
    assert [x[0].decode() for x in drawn] == [task.generate("很好", max_length=20) for _ in "12"]
