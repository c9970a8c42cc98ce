"""RoFormer-Sim: the original's vectors, losses of raw strings, distillation, supervised stage."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.pretraining.strategies import choose_strategy
from tests.layers.harness import numpy, weights_by_path
from tests.models.builders import (
    CHARACTERS,
    SPECIAL,
    backbone,
    expected_outputs,
    hidden_states,
    randomized,
    shared_preprocessor,
    texts,
    tokenizer,
)
from tests.oracles import numpy_similarity
from tests.oracles.run_original import small_config


def sim(**options):
    preprocessor = shared_preprocessor(
        roformer_tf.RoFormerSimPreprocessor, tokenizer(), sequence_length=32, source_mask_rate=0.0
    )
    return randomized(
        roformer_tf.RoFormerSim(backbone("sim", num_layers=1, **options), preprocessor)
    )


@pytest.fixture(scope="module")
def model():
    """Not to be trained."""
    return sim()


@pytest.mark.slow
def test_embed_equals_the_original(original, tmp_path, rng):
    """An original folder, texts of all lengths in batches; the original sees them one by one."""
    folder = tmp_path / "chinese_roformer-sim-char"
    vocabulary = SPECIAL + list(CHARACTERS)
    config = small_config(vocab_size=len(vocabulary))
    seed = int(rng.integers(2**31))
    heads = {"with_pool": "linear", "with_mlm": "linear"}
    original.make_checkpoint(folder, config, seed=seed, vocabulary=vocabulary, **heads)
    loaded = roformer_tf.RoFormerSim.from_preset(folder, layer_norm_epsilon=1e-7)
    drawn = texts(rng, 7, shortest=1, longest=30)
    rows = original.encode(folder / "vocab.txt", drawn, word_level=False)
    ids = np.zeros((7, 32), int)
    for row, (each, _) in zip(ids, rows, strict=True):
        row[: len(each)] = each
    (expected, _), (noise, _) = original.forward_with_noise(
        folder,
        {"token_ids": ids, "segment_ids": 0 * ids},
        application="unilm",
        with_pool="linear",
    )
    # sorted by length, in batches of three, each as wide as its longest
    found = loaded.embed(drawn, normalize=False, batch_size=3)
    # the same float32 sums in another order
    np.testing.assert_allclose(found, expected, rtol=0, atol=6 * noise)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    found = loaded.embed(drawn, batch_size=3)
    np.testing.assert_allclose(found, expected / lengths, rtol=0, atol=2e-6)
    np.testing.assert_allclose(loaded.embed(drawn[3]), found[3], rtol=0, atol=2e-6)


def sequences_by_hand(first, second):
    """Inputs, next tokens and their weights, for each pair in both directions."""
    tokens = tokenizer()
    rows = []
    for a, b in zip(first, second, strict=True):
        for source, target in ((a, b), (b, a)):
            source, target = (list(numpy(tokens(x))) for x in (source, target))
            rows.append(([2, *source, 3, *target, 3], len(source) + 2))
    width = max(len(ids) for ids, _ in rows)
    ids, segments = np.zeros((2, len(rows), width), int)
    for i, (row, start) in enumerate(rows):
        ids[i, : len(row)] = row
        segments[i, start : len(row)] = 1
    inputs = {
        "token_ids": ids[:, :-1],
        "segment_ids": segments[:, :-1],
        "padding_mask": (ids[:, :-1] > 0).astype(int),
    }
    return inputs, ids[:, 1:], segments[:, 1:]  # the tokens of targets count


def test_preprocessor(model, rng):
    first, second = texts(rng, 4), texts(rng, 4)
    inputs, next_tokens, counted = sequences_by_hand(first, second)
    found, labels, weights = model.preprocessor((first, second))
    # the last token of the longest sequence is not an input
    for name, value in inputs.items():
        ends = np.cumsum(counted[:, ::-1], axis=1)[:, ::-1] == 0
        keep = ~ends if name == "token_ids" else np.ones_like(ends)
        np.testing.assert_array_equal(found[name] * keep, value * keep, err_msg=name)
    np.testing.assert_array_equal(labels["logits"], next_tokens)
    np.testing.assert_array_equal(weights["logits"], counted)
    np.testing.assert_array_equal(labels["pooled_output"], numpy_similarity.neighbours(8))
    of_pairs = np.array([0.0, 2.0, 0.5, 1.0])
    _, _, weights = model.preprocessor((first, second), sample_weight=of_pairs)
    np.testing.assert_array_equal(weights["pooled_output"], of_pairs.repeat(2))
    np.testing.assert_array_equal(weights["logits"], of_pairs.repeat(2)[:, None] * counted)
    vectors = rng.normal(size=(2, 4, 3)).astype("float32")
    _, labels, _ = model.preprocessor((first, second), tuple(vectors))
    np.testing.assert_array_equal(labels["pooled_output"], vectors.transpose(1, 0, 2).reshape(8, 3))
    for x in (first, (first,), first[0]):
        with pytest.raises(ValueError, match="Expected pairs of texts"):
            model.preprocessor(x)


@pytest.mark.eager
def test_masked_sources(rng):
    """15 % of the tokens of half the sources are masked, and no token of a target."""
    preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer(), source_mask_rate=0.5)
    plain = roformer_tf.RoFormerSimPreprocessor(tokenizer(), source_mask_rate=0.0)
    pairs = texts(rng, 300, 10, 30), texts(rng, 300, 10, 30)
    (before, labels, _), (after, same_labels, _) = plain(pairs), preprocessor(pairs)
    before, after = ({k: numpy(v) for k, v in x.items()} for x in (before, after))
    np.testing.assert_array_equal(labels["logits"], same_labels["logits"])
    changed = before["token_ids"] != after["token_ids"]
    source = (before["segment_ids"] == 0) & (before["token_ids"] > 4)
    assert not changed[~source].any()
    has_masks = changed.any(axis=1)
    # half of the sequences of 20 tokens, of which 4 % have none masked: 5 standard deviations
    assert abs(has_masks.mean() - 0.5 * (1 - 0.045)) < 5 * 0.5 / np.sqrt(600)
    share = changed[has_masks].sum() / source[has_masks].sum()
    assert abs(share - 0.15 * 0.9 / 0.955) < 0.03
    masked = (after["token_ids"][changed] == 4).mean()
    assert abs(masked - 0.8 / 0.9) < 0.1
    again, _, _ = preprocessor(pairs)
    assert (numpy(again["token_ids"]) != after["token_ids"]).any(), "the same tokens every time"
    with pytest.raises(ValueError, match="`source_mask_rate` must be a number from 0 to 1"):
        roformer_tf.RoFormerSimPreprocessor(tokenizer(), source_mask_rate=2)


def expected_losses(model, first, second):
    inputs, next_tokens, counted = sequences_by_hand(first, second)
    states = hidden_states(model.backbone, inputs)
    logits = expected_outputs(model, inputs)
    of_tokens = numpy_similarity.language_model(logits, next_tokens, counted)
    return of_tokens, states["pooled_output"]


def test_both_losses_of_raw_strings(model, rng):
    first, second = texts(rng, 6), texts(rng, 6)
    model.compile(loss_weights={"logits": 0.5, "pooled_output": 2.0})
    found = model.evaluate((first, second), batch_size=8, verbose=0, return_dict=True)
    of_tokens, pooled = expected_losses(model, first, second)
    similar = numpy_similarity.contrastive(pooled)
    assert abs(found["logits_loss"] - of_tokens) < 1e-5 * of_tokens
    assert abs(found["pooled_output_loss"] - similar) < 1e-4
    assert abs(found["loss"] - (0.5 * of_tokens + 2 * similar)) < 3e-4
    of_batch = model.test_on_batch((first, second), return_dict=True)
    assert of_batch == pytest.approx(found, rel=1e-5)

    weights = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    found = model.evaluate((first, second), None, weights, verbose=0, return_dict=True)
    chosen = np.flatnonzero(weights)
    of_tokens, _ = expected_losses(model, *(np.array(x)[chosen] for x in (first, second)))
    assert abs(found["logits_loss"] - of_tokens) < 1e-5 * of_tokens

    of_tokens, _ = expected_losses(model, first, second)
    model.compile(loss="distillation")
    teacher = rng.normal(size=(2, 6, 3)).astype("float32")
    found = model.evaluate((first, second), tuple(teacher), verbose=0, return_dict=True)
    expected = numpy_similarity.distillation(teacher.transpose(1, 0, 2).reshape(12, 3), pooled)
    assert abs(found["pooled_output_loss"] - expected) < 1e-4
    assert abs(found["logits_loss"] - of_tokens) < 1e-5 * of_tokens


@pytest.mark.slow
def test_negatives_are_those_of_the_replica(rng):
    """With two replicas the loss is the mean of those of the halves of the batch."""
    first, second = texts(rng, 8), texts(rng, 8)
    with choose_strategy(cpu_replicas=2).scope():
        replicated = sim()
    dataset = tf.data.Dataset.from_tensor_slices((first, second)).batch(8)
    dataset = dataset.map(lambda a, b: ((a, b),))
    found = replicated.evaluate(dataset, verbose=0, return_dict=True)
    halves = [expected_losses(replicated, first[i : i + 4], second[i : i + 4]) for i in (0, 4)]
    expected = np.mean([numpy_similarity.contrastive(pooled) for _, pooled in halves])
    whole = numpy_similarity.contrastive(np.concatenate([pooled for _, pooled in halves]))
    assert abs(found["pooled_output_loss"] - expected) < 1e-4
    assert abs(expected - whole) > 1e-3


@pytest.mark.slow
def test_fit_learns_pairs(rng):
    """Partners become the nearest of eight pairs, and each text learns to generate its partner."""
    first, second = texts(rng, 8, 4, 8), texts(rng, 8, 4, 8)
    model = sim()
    model.compile(keras.optimizers.Adam(5e-3))
    dataset = tf.data.Dataset.from_tensors(((first, second),)).repeat(25)
    history = model.fit(dataset, epochs=4, verbose=0).history
    for name in ("logits_loss", "pooled_output_loss"):
        assert history[name][-1] < 0.5 * history[name][0], history
    assert history["pooled_output_accuracy"][-1] > 0.95
    a, b = model.embed(first), model.embed(second)
    np.testing.assert_array_equal((a @ b.T).argmax(axis=1), np.arange(8))


@pytest.mark.eager
def test_from_a_checkpoint_without_pooler(tmp_path, rng):
    """As the original started: weights of a masked language model and a new pooler."""
    masked_lm = randomized(roformer_tf.RoFormerMaskedLM(backbone("v1", num_layers=1)))
    folder = save_checkpoint(masked_lm, tmp_path / "roformer")
    lines = tokenizer().get_vocabulary()
    (tmp_path / "roformer" / "vocab.txt").write_text("".join(f"{t}\n" for t in lines), "utf-8")
    with pytest.raises(ValueError, match="RoFormerSim needs a pooler.* pass strict=False"):
        roformer_tf.RoFormerSim.from_preset(folder)
    loaded = roformer_tf.RoFormerSim.from_preset(folder, strict=False, sequence_length=16)
    assert loaded.backbone.masking == "unilm" and loaded.preprocessor.sequence_length == 16
    assert loaded.embed(texts(rng, 2)).shape == (2, 16)
    found, expected = weights_by_path(loaded.backbone), weights_by_path(masked_lm.backbone)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    classifier = roformer_tf.RoFormerSimClassifier.from_preset(folder, strict=False)
    assert classifier.backbone.pooler_activation == "linear"


def test_errors(model):
    with pytest.raises(ValueError, match="The dataset is empty"):
        model.embed([])
    with pytest.raises(TypeError, match="Received: 3 of type int as example 1"):
        model.embed(["天", 3])
    with pytest.raises(ValueError, match="The model has no preprocessor"):
        roformer_tf.RoFormerSim(model.backbone).embed("天")
    with pytest.raises(ValueError, match="needs a backbone with a pooler: make it with"):
        roformer_tf.RoFormerSim(backbone(masking="unilm", num_layers=1))
    with pytest.raises(
        ValueError, match="needs a backbone with `masking='unilm'`.*'bidirectional'"
    ):
        roformer_tf.RoFormerSim(backbone("v1_pooler", num_layers=1))
    with pytest.raises(ValueError, match="`y` must be None, or for distillation a tuple"):
        model.fit((["天", "地"], ["玄", "黄"]), [0, 1], verbose=0)
    with pytest.raises(ValueError, match="`loss` must be 'auto', 'distillation' or a dictionary"):
        model.compile(loss="mse")
    with pytest.raises(ValueError, match="`groups` must be positive integers"):
        roformer_tf.RoFormerSimClassifier(model.backbone, groups=(2, 0))
    classifier = roformer_tf.RoFormerSimClassifier(
        model.backbone, roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer()), groups=(2, 3)
    )
    pair = ["天"], ["地"]
    for y, class_weight, message in (
        ([5], None, "to `sum\\(groups\\)` - 1 = 4. Received: labels from 5 to 5$"),
        (["天"], None, "Received: labels such as '天'$"),
        (None, None, "Labels are missing"),
        ([1], {5: 1.0}, "numbers from 0 to 4. Received: 5"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.fit(pair, y, class_weight=class_weight, verbose=0)


def test_similar_ranks_generated_texts(model, monkeypatch):
    """Without repetitions, the text itself and empty texts; the nearest first."""
    drawn = ["天地", "", "玄黄", "天地", "宇宙洪荒", " 日月 ", "日月", "天地玄"]
    asked = []

    def generate(texts, max_length):
        asked.append((texts, max_length))
        return drawn

    monkeypatch.setattr(model, "generate", generate)
    found = model.similar(tf.constant(["日月", " 日月"]), n=8, k=3, max_length=30)
    assert asked == [(["日月"] * 8, 30), ([" 日月"] * 8, 30)]
    different = ["天地", "玄黄", "宇宙洪荒", "天地玄", " 日月 "]
    a, others = model.embed("日月"), model.embed(different)
    expected = sorted(zip(others @ a, different), reverse=True)[:3]
    for each in found:
        # to the model the text with blanks is the same: its cosine is 1
        assert {text for text, _ in each} <= {text for _, text in expected} | {" 日月 "}
        np.testing.assert_allclose([s for _, s in each], [s for s, _ in expected], atol=1e-6)
    for name in ("n", "k"):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
            model.similar("天", **{name: 0})
    with pytest.raises(ValueError, match="The dataset is empty"):
        model.similar([])


def test_similar_of_a_seed(model):
    """The model repeats its texts for the same seed, within `max_length`."""
    runs = []
    for seed in (1, 1, 2):
        # eagerly: three graphs take longer than a few tokens
        sampler = keras_hub.samplers.TopPSampler(p=0.95, seed=seed)
        model.compile(sampler=sampler, run_eagerly=True)
        runs.append(model.similar("天地玄黄", n=8, k=5, max_length=14))
    assert runs[0] == runs[1] != runs[2]
    texts, cosines = zip(*runs[0], strict=True)
    assert len(set(texts)) == len(texts) <= 5 and "天地玄黄" not in texts
    assert max(map(len, texts)) <= 14 - 6
    vectors = model.embed(["天地玄黄", *texts])
    np.testing.assert_allclose(cosines, vectors[1:] @ vectors[0], atol=1e-6)


def test_score_is_that_of_the_language_model(model, rng):
    """Each pair once, in its own direction, though `fit` learns both."""
    causal_lm = roformer_tf.RoFormerCausalLM(
        model.backbone, roformer_tf.RoFormerCausalLMPreprocessor(tokenizer())
    )
    causal_lm.head.set_weights(model.head.get_weights())
    pairs = texts(rng, 3), texts(rng, 3)
    found, expected = model.score(pairs), causal_lm.score(pairs)
    for name, value in expected.items():
        # The perplexity is the exponential of a loss of some 10, whose float32 rounding it shows.
        rtol = 1e-5 if name == "perplexity" else 1e-6
        np.testing.assert_allclose(found[name], value, rtol=rtol, err_msg=name)


def test_supervised_stage(model, rng):
    """Sim-ft: [a, b, |a - b|] of the pooled vectors of each text alone; a softmax for each task."""
    classifier = roformer_tf.RoFormerSimClassifier(
        model.backbone, roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer())
    )
    first, second, y = texts(rng, 9), texts(rng, 9), rng.integers(0, 5, size=9)
    a, b = (model.embed(x, normalize=False).astype("float64") for x in (first, second))
    kernel = numpy(classifier.logits_dense.kernel).astype("float64")
    expected = np.concatenate([a, b, np.abs(a - b)], axis=1) @ kernel
    found = classifier.predict((first, second), batch_size=4, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    result = classifier.evaluate((first, second), y, verbose=0, return_dict=True)
    assert abs(result["loss"] - numpy_similarity.grouped(y, expected, (2, 3))) < 1e-5
    best = np.where(y < 2, expected[:, :2].argmax(1), 2 + expected[:, 2:].argmax(1))
    assert abs(result["accuracy"] - (best == y).mean()) < 1e-6
    np.testing.assert_allclose(classifier.embed(first, normalize=False), a, atol=1e-5)
    with pytest.raises(ValueError, match="Received: labels from . to 5"):
        classifier.fit((first, second), [*y[:8], 5], verbose=0)
    with pytest.raises(ValueError, match="Expected pairs of texts"):
        classifier.predict(first, verbose=0)


@pytest.mark.eager
def test_saving(model, tmp_path, rng):
    drawn = texts(rng, 3)
    model.save_to_preset(str(tmp_path / "sim"))
    again = roformer_tf.RoFormerSim.from_preset(str(tmp_path / "sim"))
    np.testing.assert_array_equal(again.embed(drawn), model.embed(drawn))
    assert again.preprocessor.get_config() == model.preprocessor.get_config()

    classifier = roformer_tf.RoFormerSimClassifier(
        model.backbone, roformer_tf.RoFormerSimClassifierPreprocessor(tokenizer()), groups=(2,)
    )
    classifier.save(tmp_path / "classifier.keras")
    again = keras.saving.load_model(tmp_path / "classifier.keras")
    found = again.predict((drawn, drawn), verbose=0)
    np.testing.assert_array_equal(found, classifier.predict((drawn, drawn), verbose=0))
    np.testing.assert_array_equal(again.embed(drawn), model.embed(drawn))
