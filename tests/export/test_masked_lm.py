"""`fill_mask` and the SavedModel fill masks as NumPy does from the logits."""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import RoFormerMaskedLM
from roformer_tf.export import export_saved_model
from roformer_tf.export.served_models import ServedMaskedLM
from roformer_tf.models import fill_mask
from tests.export.conftest import assert_close, encoded, one_segment
from tests.oracles.numpy_roformer import softmax


def with_masks(rng, texts):
    """Returns pieces of the texts with up to three masks each."""
    masked = []
    for number, text in enumerate(texts):
        text = text[:12]
        for position in sorted(rng.integers(0, len(text) + 1, number % 4), reverse=True):
            text = text[:position] + "[MASK]" + text[position:]
        masked.append(text)
    return masked


def filled_by_numpy(task, text, top_k):
    """Returns ids, probabilities and positions of the masks of one text, packed by hand."""
    tokenizer = task.preprocessor.tokenizer
    ids = [tokenizer.start_token_id]
    for part in text.split("[MASK]"):
        ids += [*tokenizer([part])[0], tokenizer.mask_token_id]
    ids[-1] = tokenizer.end_token_id
    positions = np.flatnonzero(np.array(ids) == tokenizer.mask_token_id)
    p = softmax(np.float64(task(one_segment([ids])))[0, positions])
    best = np.argsort(-p, axis=-1, kind="stable")[:, :top_k]
    return best, np.take_along_axis(p, best, -1), positions


@pytest.mark.parametrize(
    "backbone",
    [
        {},
        pytest.param(
            {"norm": "rms_norm", "activation": "relu", "embedding_dim": 8}, marks=pytest.mark.slow
        ),
    ],
)
def test_masks_are_filled(build, ask, rng, texts, tmp_path, backbone):
    task = build(RoFormerMaskedLM, backbone, {"sequence_length": 64})
    texts = with_masks(rng, texts[:24])
    texts += ["", "[MASK]", "[MASK][MASK]", "[mask] [CLS]"]
    answer = ask(export_saved_model(task, tmp_path / "served", top_k=4), texts=encoded(texts))
    filled = fill_mask(task, texts, top_k=4, batch_size=10)
    tokens = task.preprocessor.tokenizer.get_vocabulary()
    assert answer["tokens"].shape == answer["ids"].shape == (len(texts), 3, 4)
    for row, text in enumerate(texts):
        ids, probabilities, positions = filled_by_numpy(task, text, 4)
        n = len(positions)
        assert n == text.count("[MASK]") == len(filled[row])
        assert answer["ids"][row, :n].tolist() == ids.tolist()
        assert answer["mask_positions"][row].tolist() == [*positions, *[-1] * (3 - n)]
        assert_close(answer["probabilities"][row, :n], probabilities)
        names = [[tokens[i] for i in mask] for mask in ids]
        assert [[t.decode() for t in mask] for mask in answer["tokens"][row, :n]] == names
        assert [[t for t, _ in mask] for mask in filled[row]] == names
        assert_close(
            [[p for _, p in mask] for mask in filled[row]] or np.zeros((0, 4)), probabilities
        )
        # a text with fewer masks than another
        assert (answer["tokens"][row, n:] == b"").all() and (answer["ids"][row, n:] == -1).all()
        assert (answer["probabilities"][row, n:] == 0).all()


@pytest.mark.parametrize("truncate_from, kept", [("right", [0, 1]), ("left", [1, 2])])
@pytest.mark.slow
def test_masks_lost_to_truncation(build, ask, tmp_path, truncate_from, kept):
    options = {"sequence_length": 8, "truncate_from": truncate_from}
    task = build(RoFormerMaskedLM, preprocessing=options)
    text = "[MASK]很很很[MASK]好好好[MASK]"
    folder = export_saved_model(task, tmp_path / "served", top_k=2)
    answer = ask(folder, texts=encoded([text, "[MASK]"]))
    found = answer["mask_positions"][0] >= 0
    assert np.flatnonzero(found).tolist() == kept
    assert (answer["ids"][0, ~found] == -1).all()
    assert answer["mask_positions"][1].tolist() == [1, -1, -1]
    with pytest.raises(
        ValueError, match=r"Text 1, which begins with .* has 3 masks, .* sequence_length=8 leaves 2"
    ):
        fill_mask(task, ["[MASK]", text])

    # no mask anywhere, no text at all
    assert ask(folder, texts=encoded(["很好"]))["tokens"].shape == (1, 0, 2)
    assert ask(folder, texts=[])["tokens"].shape == (0, 0, 2)
    assert fill_mask(task, ["很好"]) == [[]]


def test_lost_masks_take_no_memory(build, calls_of):
    """The model computes logits for the masks that are left, not for thousands that are cut off."""
    task = build(RoFormerMaskedLM, preprocessing={"sequence_length": 8})
    served = ServedMaskedLM(task, task.preprocessor, "unused", top_k=2)
    positions = calls_of(served, "outputs", lambda inputs: inputs["mask_positions"].numpy())
    texts = tf.constant(["[MASK]很[MASK]" + 50 * "[MASK]", "很好[MASK]"])
    inputs, found = task.preprocessor.pack_masks(texts)
    ids, probabilities = served.best_tokens({**inputs, "found": found})
    assert positions[0].tolist() == [[1, 3, 4, 5, 6], [3, 0, 0, 0, 0]]
    assert ids.shape == probabilities.shape == (2, 52, 2)
    logits = task({**inputs})  # of all masks, where they were in the text
    best = tf.math.top_k(logits, 2).indices.numpy()
    assert ids.numpy()[found].tolist() == best[found].tolist()


def test_logits_for_token_ids(build, ask, rng, tmp_path):
    task = build(RoFormerMaskedLM, {"dtype": "mixed_bfloat16"})
    folder = export_saved_model(task, tmp_path / "served")
    inputs = one_segment(rng.integers(5, 900, (3, 7)))
    inputs["mask_positions"] = np.int32([[1, 2], [6, 0], [3, 3]])
    logits = ask(folder, "token_ids", **inputs)["logits"]
    assert logits.dtype == np.float32
    # bfloat16 has 8 bits, and graphs are rounded elsewhere than single operations
    assert_close(logits, np.float32(tf.function(task)(inputs)), tolerance=3e-2)


def test_fill_mask_accepts_one_string_and_bytes(build):
    task = build(RoFormerMaskedLM)
    one = fill_mask(task, "很[MASK]", top_k=2)
    assert one == fill_mask(task, ["很[MASK]".encode()], top_k=2)[0]
    assert len(one) == 1 and len(one[0]) == 2


def test_fill_mask_refuses_an_impossible_top_k(build):
    task = build(RoFormerMaskedLM)
    for top_k in (0, -1, 10**6, 2.0, True):
        with pytest.raises(ValueError, match="`top_k` must be an integer from 1 to"):
            fill_mask(task, "很[MASK]", top_k=top_k)


def test_fill_mask_names_what_is_missing(build, monkeypatch):
    task = build(RoFormerMaskedLM)
    with pytest.raises(ValueError, match="Expected a RoFormerMaskedLM. Received: RoFormerBackbone"):
        fill_mask(task.backbone, "很[MASK]")
    with monkeypatch.context() as patch:
        patch.setattr(task.preprocessor.tokenizer, "mask_token", None)
        with pytest.raises(ValueError, match="has no mask token"):
            fill_mask(task, "很[MASK]")
    task.preprocessor = None
    with pytest.raises(ValueError, match="model.preprocessor = RoFormerMaskedLMPreprocessor"):
        fill_mask(task, "很[MASK]")
