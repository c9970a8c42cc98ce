"""Entities: offsets, heads, chunks, labels, files, and every form of data."""

import gzip

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.models import entities_from_words, read_conll
from roformer_tf.models.entity_tag_loss import tags_of_spans
from roformer_tf.models.roformer_token_classifier import HEADS, POINTERS
from tests.models.answering import (
    HARD,
    VOCABULARY,
    backbone,
    check_files,
    check_forms_of_data,
    check_lora,
    random_text,
    tokenizer,
)
from tests.models.builders import V2, randomized, shared_preprocessor
from tests.oracles.run_original import small_config

LABELS = ["PER", "LOC", "ORG"]
EACH_HEAD = [HEADS[0], *(pytest.param(head, marks=pytest.mark.slow) for head in HEADS[1:])]


def tagger(head="global_pointer", kind=None, sequence_length=64, stride=8, **options):
    preprocessor = shared_preprocessor(
        roformer_tf.RoFormerTokenClassifierPreprocessor,
        tokenizer(),
        sequence_length=sequence_length,
        stride=stride,
    )
    return randomized(
        roformer_tf.RoFormerTokenClassifier(
            backbone(kind), LABELS, preprocessor, head=head, head_dim=8, lr_multiplier=1, **options
        )
    )


def outputs_of(task, x, y):
    """Returns outputs of a perfect model for model inputs and spans of tokens."""
    shape, types = x["token_ids"].shape, len(LABELS)
    if task.head in POINTERS:
        outputs = np.full((shape[0], types, shape[1], shape[1]), -9, "float32")
        for row, spans in enumerate(np.asarray(y)):
            for first, last, kind in spans[spans[:, 0] >= 0]:
                outputs[row, kind, first, last] = 9
        return outputs
    tags = np.asarray(tags_of_spans(y, shape[1]))
    outputs = 20 * np.eye(2 * types + 1, dtype="float32")[tags]
    if task.head == "crf":
        outputs = np.repeat(outputs[:, :, None], 2 * types + 1, axis=2)
    return outputs


def answers_of(task, texts, entities):
    """What the task answers if its model is perfect, without scores."""
    labels = task.encode_labels(entities)
    x, y = task.preprocessor(texts, y=labels)
    inputs, details = task.pack(tf.constant(texts))
    np.testing.assert_array_equal(inputs["token_ids"], x["token_ids"])
    tensors = task.decoded(outputs_of(task, x, y), details, len(texts))
    return [[entity[:3] for entity in row] for row in task.to_answers(tensors)]


def token_entities(rng, task, text, overlap):
    """Draws entities of one to four tokens from a text, in characters."""
    _, starts, ends = task.preprocessor.tokenizer.tokenize_with_offsets([text])
    starts, ends = starts[0], ends[0]
    found, position = [], 0
    while position < len(starts):
        last = min(position + int(rng.integers(0, 4)), len(starts) - 1)
        found.append((starts[position], ends[last], str(rng.choice(LABELS))))
        step = 1 if overlap else last - position + 1
        position += step + int(rng.integers(0, 3))
    return found


# what it tests is the same for both pointers
@pytest.mark.eager
@pytest.mark.parametrize("head", [head for head in HEADS if head != "efficient_global_pointer"])
def test_entities_come_back(rng, head):
    """Characters -> tokens of chunks -> characters is the identity, however long the texts."""
    task = tagger(head, sequence_length=34, stride=12)
    texts = [random_text(rng, n) for n in (1, 5, 31, 32, 33, 80, 200)]
    entities = [token_entities(rng, task, text, head in POINTERS) for text in texts]
    entities = [sorted(set(row)) for row in entities]
    found = answers_of(task, texts, entities)
    assert [sorted(row) for row in found] == entities
    inputs, _ = task.pack(tf.constant(texts))
    assert len(inputs["token_ids"]) > len(texts)  # there are chunks


def test_offsets_of_hard_texts():
    """Every token is found, at the characters that it came from, marks included."""
    task = tagger()
    for text in HARD:
        _, starts, ends = task.preprocessor.tokenizer.tokenize_with_offsets([text])
        inputs, details = task.pack(tf.constant([text]))
        found = [(s, e) for s, e in zip(*(details[k][0].numpy() for k in ("starts", "ends")))][1:-1]
        assert [start for start, _ in found] == starts[0]
        # the same ends, but for marks, which `tokenize_with_offsets` leaves out
        for (_, end), plain in zip(found, ends[0], strict=True):
            assert end == plain or not text[plain:end].isalnum()
    text = "Cafe\u0301 北京"
    # a user marks the accent as part of the word
    assert answers_of(task, [text], [[(0, 5, "ORG"), (6, 8, "LOC")]]) == [
        [(0, 5, "ORG"), (6, 8, "LOC")]
    ]
    family = "👨‍👩‍👧 in 北京🇨🇳"
    start = family.index("北")
    assert answers_of(task, [family], [[(start, start + 2, "LOC")]]) == [
        [(start, start + 2, "LOC")]
    ]


@pytest.mark.eager
def test_entities_inside_tokens_are_left_out():
    """ "ab" is one token with its later piece: an entity may not begin inside of a character run."""
    task = tagger()
    x, y = task.preprocessor(["天abc地"], y=task.encode_labels([[(1, 4, "PER"), (0, 1, "LOC")]]))
    assert np.asarray(y)[0].tolist() == [[2, 4, 0], [1, 1, 1]]
    words = roformer_tf.RoFormerTokenizer([*VOCABULARY, "abc"], word_level=False)
    task.preprocessor = roformer_tf.RoFormerTokenClassifierPreprocessor(words)
    x, y = task.preprocessor(["天abc地"], y=task.encode_labels([[(1, 3, "PER"), (1, 4, "LOC")]]))
    assert np.asarray(y)[0].tolist() == [[-1, -1, -1], [2, 2, 1]]


def sentences(rng, count):
    """Sentences that a model can learn: 在 is followed by a place of two characters."""
    texts, entities = [], []
    for _ in range(count):
        before, after = (random_text(rng, int(n)).replace("在", "") for n in rng.integers(1, 9, 2))
        text = f"{before}在北京{after}"
        start = len(before) + 1
        texts.append(text)
        entities.append([(start, start + 2, "LOC")])
    return texts, entities


@pytest.mark.parametrize("head", EACH_HEAD)
def test_learns(rng, head):
    task = tagger(head, kind={"num_layers": 2, **(V2 if head == "softmax" else {})})
    task.compile(keras.optimizers.Adam(0.01))
    texts, entities = sentences(rng, 32)
    x, y = task.preprocessor(texts, y=task.encode_labels(entities))
    losses = [float(task.train_on_batch(x, y)) for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    found = task.predict(texts, verbose=0)
    right = sum([e[:3] for e in row] == want for row, want in zip(found, entities, strict=True))
    assert right >= 30
    assert all(0.5 <= score <= 1 for row in found for *_, score in row)


@pytest.mark.parametrize("head", EACH_HEAD)
def test_padding_and_batches_change_nothing(rng, head):
    """A text alone, in a batch of long ones, and in model inputs gives the same outputs."""
    task = tagger(head, sequence_length=40)
    texts = [random_text(rng, int(n)) for n in rng.integers(1, 90, 7)]
    together = task.predict(texts, verbose=0)
    assert len(together) == len(texts) and any(together)
    alone = [task.predict([text], verbose=0)[0] for text in texts]
    by_tokens = task.predict(texts, max_tokens_per_batch=100, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(3)
    streamed = task.predict(dataset, verbose=0)
    for other in (alone, by_tokens, streamed):
        for row, same in zip(together, other, strict=True):
            assert [entity[:3] for entity in row] == [entity[:3] for entity in same]
            scores = [[entity[3] for entity in x] for x in (row, same)]
            np.testing.assert_allclose(*scores, atol=1e-5)
    x = task.preprocessor(texts[:1])
    assert len(task.predict(x, verbose=0)) == len(x["token_ids"])


@pytest.mark.eager
@pytest.mark.slow
def test_every_form_of_data(rng):
    """Lists, datasets, generators and preprocessed inputs give the same loss."""
    task = tagger(dropout=0.0)
    texts, entities = sentences(rng, 6)
    expected, _ = check_forms_of_data(task, texts, entities, rtol=1e-6)
    found = task.evaluate(texts, task.encode_labels(entities), steps=1, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    numbers = [[(s, e, LABELS.index(kind)) for s, e, kind in row] for row in entities]
    for options in ({"ragged_rank": 1, "inner_shape": (3,)}, {}):
        ragged = tf.ragged.constant(numbers, tf.int32, **options)
        dataset = tf.data.Dataset.from_tensor_slices((texts, ragged)).batch(4)
        np.testing.assert_allclose(task.evaluate(dataset, verbose=0), expected, rtol=1e-6)
    task.compile(keras.optimizers.SGD(0.0))
    history = task.fit(
        texts, entities, batch_size=3, validation_data=(texts, entities), verbose=0,
        group_by_length=True,
    )  # fmt: skip
    np.testing.assert_allclose(history.history["val_loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(history.history["loss"], expected, rtol=1e-5)
    weights = np.array([1.0, 0, 0, 0, 0, 0])
    first = task.evaluate(texts[:1], entities[:1], verbose=0)
    weighted = task.evaluate(texts, entities, sample_weight=weights, verbose=0)
    np.testing.assert_allclose(6 * weighted, first, rtol=1e-5)


def test_predict_of_a_dataset_is_that_of_any_task(rng):
    task, texts = tagger(), [random_text(rng, n) for n in (9, 70, 3, 30, 5)]
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    calls = []
    logged = keras.callbacks.LambdaCallback()
    logged.on_predict_begin = lambda logs: calls.append("begin")
    logged.on_predict_batch_end = lambda step, logs: calls.append((step, len(logs["outputs"])))
    logged.on_predict_end = lambda logs: calls.append("end")
    found = task.predict(dataset, callbacks=[logged], verbose=0)
    assert calls == ["begin", (0, 2), (1, 2), (2, 1), "end"]
    assert [[entity[:3] for entity in row] for row in found] == [
        [entity[:3] for entity in row] for row in task.predict(texts, verbose=0)
    ]
    assert len(task.predict(dataset, steps=2, verbose=0)) == 4
    with pytest.raises(ValueError, match="The dataset is empty"):
        task.predict(dataset.filter(lambda x: False), verbose=0)
    with pytest.raises(ValueError, match="`batch_size` is its own"):
        task.predict(dataset, batch_size=2, verbose=0)


@pytest.mark.eager
@pytest.mark.parametrize("head", [head for head in HEADS if head not in POINTERS])
def test_floatx_changes_no_dtype(rng, head):
    task, texts = tagger(head), [random_text(rng, n) for n in (5, 9)]
    expected = task.predict(texts, verbose=0)
    keras.config.set_floatx("float64")
    assert task.predict(texts, verbose=0) == expected


@pytest.mark.parametrize("head", HEADS)
def test_nan_is_seen_in_the_loss(head):
    """`TerminateOnNaN` would not stop, and the best model would be the broken one."""
    shapes = {"crf": (1, 4, 7, 7), "softmax": (1, 4, 7)}
    outputs = np.full(shapes.get(head, (1, 3, 4, 4)), np.nan, "float32")
    assert np.isnan(float(tagger(head).default_loss()(np.array([[[1, 2, 0]]]), outputs)))


@pytest.mark.eager
@pytest.mark.parametrize("head", EACH_HEAD)
def test_files(tmp_path, rng, head):
    """A `.keras` file and a preset give the same answers; a preset gives new labels a new head."""
    task = tagger(head)
    loaded = check_files(task, [random_text(rng, 20), "北京"], tmp_path)
    assert loaded.labels == LABELS and loaded.head == head
    new = roformer_tf.RoFormerTokenClassifier.from_preset(
        tmp_path / "preset", labels=["A", "B"], head=head
    )
    assert new.labels == ["A", "B"]
    ids = {"token_ids": np.array([[2, 7, 9, 3]])}
    np.testing.assert_array_equal(new.backbone(ids), task.backbone(ids))


@pytest.mark.oracle
@pytest.mark.parametrize("head", POINTERS)
def test_original_weights(original, tmp_path, rng, head):
    """An original checkpoint and a head of bert4keras give bert4keras' scores."""
    original.make_checkpoint(tmp_path, small_config(), seed=8373)
    task = roformer_tf.RoFormerTokenClassifier.from_preset(
        tmp_path, labels=LABELS, head=head, head_dim=8
    )
    randomized(task.pointer)
    ids = rng.integers(5, 200, (2, 7)).astype("int32")
    ids[:, 0] = 2
    (hidden,) = original.forward(tmp_path, {"token_ids": ids, "segment_ids": 0 * ids})
    name = POINTERS[head].__name__
    arguments = {"heads": len(LABELS), "head_size": 8}
    want = original.span_scores(name, arguments, hidden, None, task.pointer.get_weights())
    found = np.asarray(task({"token_ids": ids}))
    np.testing.assert_allclose(found, want, atol=2e-5)


@pytest.mark.slow
def test_low_precision_and_lora(rng):
    for dtype in ("mixed_bfloat16", "bfloat16"):
        task = roformer_tf.RoFormerTokenClassifier(
            backbone(dtype=dtype), LABELS, tagger().preprocessor, head_dim=8
        )
        texts, entities = sentences(rng, 4)
        assert np.isfinite(task.evaluate(texts, entities, verbose=0))
        assert task.output.dtype == "float32"
    task = tagger()
    check_lora(task, *task.preprocessor(texts, y=task.encode_labels(entities)))


def test_errors():
    task, text = tagger("crf"), "我在北京"
    for entities, message in (
        ([[(2, 4, "XYZ")]], r"must be among \['PER', 'LOC', 'ORG'\].*text 0"),
        ([[(4, 2, "LOC")]], "0 <= start < end"),
        ([[(2, "LOC")]], "0 <= start < end"),
        ([[(2, 4.5, "LOC")]], "0 <= start < end"),
        ([[(2, 9, "LOC")]], "must lie within its text.*4 characters"),
        ([[(0, 3, "LOC"), (2, 4, "PER")]], "need `head='global_pointer'`"),
        (["LOC"], "The entities of text 0 must be a list"),
        ("LOC", "Entities must be a list"),
        (None, "Labels are missing"),
    ):
        with pytest.raises(ValueError, match=message):
            task.evaluate([text], entities, verbose=0)
    with pytest.raises(ValueError, match="the callback `AnswerMetrics`. Received: .*'accuracy'"):
        task.compile(metrics=["accuracy"])
    with pytest.raises(ValueError, match="has no classes of examples to weigh"):
        task.fit([text], [[]], class_weight={0: 1.0}, verbose=0)
    with pytest.raises(ValueError, match="must lie within its text"):
        task.fit(np.array([text]), [[(2, 9, "LOC")]], verbose=0)
    with pytest.raises(ValueError, match="of one length"):
        task.fit([text, text], [[]], verbose=0)
    with pytest.raises(TypeError, match="Every example must be a string"):
        task.predict([text, 3], verbose=0)
    with pytest.raises(ValueError, match="`steps` must be a positive integer"):
        task.predict([text] * 40, steps=-1, verbose=0)
    with pytest.raises(ValueError, match="`labels` must be a list of strings"):
        roformer_tf.RoFormerTokenClassifier(backbone(), "PER")
    with pytest.raises(ValueError, match="`head` must be one of"):
        roformer_tf.RoFormerTokenClassifier(backbone(), LABELS, head="span")
    with pytest.raises(ValueError, match="`stride` must be"):
        roformer_tf.RoFormerTokenClassifierPreprocessor(tokenizer(), stride=-1)
    assert task.predict([""], verbose=0) == [[]]


def test_words_with_tags():
    """CoNLL's tags in their usual variants."""
    words = "Ada Lovelace met the Royal Society of London yesterday".split()
    spans = [(0, 12, "PER"), (21, 44, "ORG")]
    bio = "B-PER I-PER O O B-ORG I-ORG I-ORG I-ORG O".split()
    bioes = "B-PER E-PER O O B-ORG I-ORG I-ORG E-ORG O".split()
    for tags in (bio, bioes):
        text, found = entities_from_words(words, tags)
        assert found == spans and text[21:44] == "Royal Society of London"
    assert entities_from_words("我在北京", "O O LOC LOC".split(), "") == (
        "我在北京",
        [(2, 4, "LOC")],
    )
    assert entities_from_words(["北京", "上海"], ["S-LOC", "S-LOC"], "")[1] == [
        (0, 2, "LOC"),
        (2, 4, "LOC"),
    ]
    bilou = "B-PER L-PER O U-ORG U-ORG B-GPE-NAM I-GPE-NAM L-GPE-NAM L-GPE-NAM".split()
    assert entities_from_words(list("abcdefghi"), bilou, "")[1] == [
        *((0, 2, "PER"), (3, 4, "ORG"), (4, 5, "ORG"), (5, 8, "GPE-NAM"), (8, 9, "GPE-NAM"))
    ]
    with pytest.raises(ValueError, match="2 words and 1 tags"):
        entities_from_words(["a", "b"], ["O"])


@pytest.mark.parametrize(
    "tags",
    [
        "O B-LOC I-LOC B-LOC O",  # BIO
        "O B-LOC E-LOC S-LOC O",  # BIOES, BMES
        "O B-LOC L-LOC U-LOC O",  # BILOU
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_with_a_tag_for_each_character(tmp_path, tags, ending):
    content = "".join(f"{c}\t{t}\r\n" for c, t in zip("去北京沪。", tags.split()))
    content = f"\ufeff-DOCSTART- O\n\n{content}\n \n\n无 O\n 	O\n　 O\n事 O".encode()
    path = tmp_path / f"train.bmes{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    texts, entities = read_conll(path, "")
    assert texts == ["去北京沪。", "无 　事"]
    assert entities == [[(1, 3, "LOC"), (3, 4, "LOC")], []]


def test_files_with_four_columns(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("U.N. NNP I-NP I-ORG\nofficial NN I-NP O\nEkeus NNP I-NP I-PER\n")
    assert read_conll(path) == (["U.N. official Ekeus"], [[(0, 4, "ORG"), (14, 19, "PER")]])
    assert read_conll(path, tag_column=2)[1] == [[(0, 19, "NP")]]
    with pytest.raises(ValueError, match="train.txt, line 1: expected a word.*tag in column 4"):
        read_conll(path, tag_column=4)
    path.write_text("U.N. O\nofficial\n")
    with pytest.raises(ValueError, match="line 2: expected a word.*Received: 'official'"):
        read_conll(path)
    path.write_bytes("一 O\n".encode() + "二".encode("gb18030"))
    with pytest.raises(ValueError, match="line 2: the file is not UTF-8"):
        read_conll(path)
