"""RoFormer-Sim: embeddings and similar texts of the SavedModel against the Keras model."""

import keras_hub
import numpy as np
import pytest

from roformer_tf import RoFormerSim
from roformer_tf.export import export_saved_model
from tests.export.conftest import assert_close, encoded, one_segment

NUMBERS = {"n": 8, "k": 4, "max_length": 24}


@pytest.fixture
def task(build):
    task = build(RoFormerSim, {"masking": "unilm", "pooler": "linear"})
    task.compile(sampler=keras_hub.samplers.TopPSampler(p=0.9, seed=3))
    return task


@pytest.mark.slow
def test_sim(task, ask, texts, tmp_path):
    folder = export_saved_model(task, tmp_path / "served")
    for signature in ("serving_default", "embed"):
        answer = ask(folder, signature, texts=encoded(["", *texts[:20]]))
        assert set(answer) == {"embedding"}
        assert_close(answer["embedding"], task.embed(["", *texts[:20]]))
    text = texts[0][:8]
    answer = ask(folder, "similar", texts=encoded([text]), **NUMBERS)
    # the seed was saved as it was, so the first answer is the model's next one
    expected = task.similar(text, **NUMBERS)
    assert [t.decode() for t in answer["texts"][0]][: len(expected)] == [t for t, _ in expected]
    assert_close(answer["similarities"][0][: len(expected)], [s for _, s in expected])
    again = ask(folder, "similar", texts=encoded([text]), **NUMBERS)
    assert again["texts"].tolist() != answer["texts"].tolist(), "each call draws again"

    several = [text[:5] for text in texts[:4]]
    answer = ask(folder, "similar", texts=encoded(several), **NUMBERS)
    for text, found, cosines in zip(several, answer["texts"], answer["similarities"], strict=True):
        found = [t.decode() for t in found if t]
        assert len(set(found)) == len(found) and text not in found
        vectors = task.embed([text, *found])
        assert_close(cosines[: len(found)], vectors[1:] @ vectors[0])
        assert (np.diff(cosines[: len(found)]) <= 0).all() and not cosines[len(found) :].any()
    assert ask(folder, "similar", texts=[], **NUMBERS)["texts"].shape == (0, 4)
    for name in "nk":
        with pytest.raises(RuntimeError, match=f"`{name}` must be positive"):
            ask(folder, "similar", texts=encoded([text]), **{**NUMBERS, name: 0})
    inputs = one_segment([[2, 7, 3]])
    answer, expected = ask(folder, "token_ids", **inputs), task(inputs)
    assert set(answer) == {"logits", "pooled_output"}
    for name, value in answer.items():
        assert_close(value, np.float32(expected[name]))
