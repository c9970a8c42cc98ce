"""A task with more tokens computes what it did, and starts the new ones in the middle of theirs."""

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.models import add_tokens, fill_mask
from tests.models import builders


@pytest.mark.eager
@pytest.mark.parametrize("unused", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_add_tokens(unused, tmp_path):
    """`unused` is the number of the model's rows that the vocabulary leaves."""
    tokenizer = builders.tokenizer()
    size = tokenizer.vocabulary_size()
    task = roformer_tf.RoFormerMaskedLM(
        builders.backbone(vocabulary_size=size + unused),
        roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer),
    )
    builders.randomized(task)
    grown = add_tokens(task, ["天地", "<B>"])
    assert grown.backbone.vocabulary_size == size + unused + 2
    assert task.preprocessor.tokenizer.vocabulary_size() == size  # as it was
    [ids] = grown.preprocessor.tokenizer(["天地玄<B>"])
    assert ids == [size, *tokenizer(["玄"])[0], size + 1]
    new, old = (model.backbone.token_embedding.get_weights()[0] for model in (grown, task))
    np.testing.assert_array_equal(new[:size], old[:size])
    np.testing.assert_allclose(new[size], old[tokenizer(["天地"])[0]].mean(0), rtol=1e-6)
    np.testing.assert_allclose(new[size + 1], old[tokenizer(["<B>"])[0]].mean(0), rtol=1e-6)

    inputs = builders.inputs(np.random.default_rng(0))
    inputs["token_ids"] %= size
    inputs["mask_positions"] = np.array([[1], [2], [3]])
    logits, expected = (model.predict_on_batch(inputs) for model in (grown, task))
    # a product of another width may add in another order
    np.testing.assert_allclose(logits[..., :size], expected[..., :size], rtol=0, atol=1e-5)

    grown.fit(["天地玄<B>黄", "宇宙<B>"], verbose=0)
    grown.save_to_preset(tmp_path / "grown")
    again = roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "grown")
    text = ["天地[MASK]<B>"]
    assert fill_mask(again, text) == fill_mask(grown, text)


def test_wrong_arguments():
    backbone = builders.backbone()
    with pytest.raises(ValueError, match="a task with a preprocessor"):
        add_tokens(backbone, ["a"])
    preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(builders.new_tokenizer())
    task = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    with pytest.raises(ValueError, match="without white space"):
        add_tokens(task, ["a b"])
    preprocessor.tokenizer.add_tokens([f"<{i}>" for i in range(9)])
    with pytest.raises(ValueError, match="more than the 48 of the model"):
        add_tokens(task, ["c"])
    task = roformer_tf.RoFormerMaskedLM(builders.backbone(), task.preprocessor)
    task.enable_lora(2)
    with pytest.raises(ValueError, match="LoRA cannot grow"):
        add_tokens(task, ["c"])


def test_the_original_format_has_no_place_for_them(tmp_path):
    """Its tokenizer would take them for text, and give other ids."""
    tokenizer = builders.new_tokenizer()
    tokenizer.add_tokens(["天地"])
    backbone = builders.backbone(vocabulary_size=tokenizer.vocabulary_size())
    preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    task = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    lost = r"no place for word_level=False, added_tokens=\['天地'\]\. .*save_to_preset"
    with pytest.raises(ValueError, match=lost):
        save_checkpoint(task, tmp_path / "original")
    assert not (tmp_path / "original").exists()
    save_checkpoint(task, tmp_path / "original", vocabulary=tokenizer.get_vocabulary())
    again = roformer_tf.RoFormerTokenizer.from_preset(
        tmp_path / "original", word_level=False, added_tokens=["天地"]
    )
    assert again(["天地玄"]) == tokenizer(["天地玄"])


def test_new_tokens_do_not_start_from_padding():
    tokenizer = builders.new_tokenizer()
    tokenizer.sequence_length = 9
    preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    backbone = builders.backbone(vocabulary_size=tokenizer.vocabulary_size())
    task = builders.randomized(roformer_tf.RoFormerMaskedLM(backbone, preprocessor))
    grown = add_tokens(task, ["天地"])
    new, old = (model.backbone.token_embedding.get_weights()[0] for model in (grown, task))
    expected = old[[tokenizer.token_to_id("天"), tokenizer.token_to_id("地")]].mean(0)
    np.testing.assert_allclose(new[-1], expected, rtol=1e-6)
