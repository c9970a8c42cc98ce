"""Reading as a labelled task: its chunks, and the batches that are formed of them."""

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.pretraining import ReadingTaskSettings, Stage
from roformer_tf.pretraining.labelled_windows import ReadingWindows
from roformer_tf.pretraining.settings import DataSettings
from tests.pretraining import readings, small_corpus


def windows_of(length, batch_size=8, **options):
    task = ReadingTaskSettings(files="x.json", frequency=1, **readings.FIELDS, **options)
    preprocessor = roformer_tf.RoFormerQuestionAnsweringPreprocessor(
        small_corpus.tokenizer(), max_question_length=task.max_question_length, pair_segments=False
    )
    stage = Stage(length, batch_size, 1, 1e-3)
    data = DataSettings(files="x.txt")
    return ReadingWindows([], preprocessor, task, 1, stage, data, (4, 0), 1)


@pytest.mark.parametrize(("length", "step"), [(24, 5), (40, 128)])
def test_chunks_slide_as_in_the_original(seed, length, step):
    rng = np.random.default_rng([seed, 3])
    documents, expected = [], []
    for size in (1, 10, 18, 19, 40, 77, 150):
        question = "".join(rng.choice(small_corpus.CHARACTERS, size=rng.integers(1, 4)))
        context = "".join(rng.choice(small_corpus.CHARACTERS, size=size))
        starts = rng.integers(size, size=rng.integers(0, 3))
        spans = [(int(s), int(min(s + rng.integers(1, 6), size))) for s in starts]
        spans = list(dict.fromkeys(spans))
        numbers = " ".join(f"{s} {e}" for s, e in spans)
        documents.append(f"{numbers}\0{question}\0{context}")
        expected += readings.sliding_chunks(question, context, spans, length, step)
    windows = windows_of(length, chunk_step=step)
    windows.documents = lambda number: tf.constant(documents)
    made = windows.chunks(0)
    tokenizer = small_corpus.tokenizer()
    assert len(expected) == len(made["spans"])
    for row, (question, chunk, label) in enumerate(expected):
        ids = [tokenizer.start_token_id, *(tokenizer.token_to_id(c) for c in question)]
        ids += [tokenizer.end_token_id, *(tokenizer.token_to_id(c) for c in chunk)]
        ids += [tokenizer.end_token_id]
        assert made["token_ids"][row, : len(ids)].numpy().tolist() == ids
        assert int(made["lengths"][row]) == len(ids) == int(np.sum(made["padding_mask"][row]))
        allowed = [1] + [0] * (len(question) + 1) + [1] * len(chunk)
        allowed += [0] * (length - len(allowed))
        assert made["answer_mask"][row].numpy().tolist() == allowed
        assert tuple(made["spans"][row].numpy()) == label
    assert not np.any(made["segment_ids"])


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize(("answered", "others"), [(23, 60), (60, 7), (20, 20), (9, 0), (0, 9)])
def test_half_of_a_batch_may_lack_an_answer(size, answered, others, seed):
    rng = np.random.default_rng([seed, 4])
    lengths = tf.constant(rng.integers(5, 30, answered + others).astype("int32"))
    has_answer = rng.permutation([True] * answered + [False] * others)
    spans = tf.constant(np.where(has_answer[:, None], [3, 4], 0).astype("int32"))
    windows = windows_of(32, batch_size=size)

    def order(window):
        return windows.order({"window": window, "lengths": lengths, "spans": spans}).numpy()

    batches = order(tf.constant(3, tf.int64))
    assert batches.shape[1] == size
    # as many as there can be
    full = min((answered + others) // size, answered // (size - size // 2))
    assert len(batches) == full
    kept = batches.ravel()
    assert len(set(kept)) == len(kept)
    for batch in batches:
        assert (~has_answer[batch]).sum() <= size // 2
    # nothing is dropped but what is too much, or fills no batch
    dropped = answered + others - len(kept)
    assert dropped < size or (~has_answer[kept]).sum() == full * (size // 2)
    assert np.array_equal(batches, order(tf.constant(3, tf.int64)))
    if full > 3:
        assert not np.array_equal(batches, order(tf.constant(4, tf.int64)))
        widest = [lengths.numpy()[batch].max() for batch in batches]
        assert np.mean(widest) < lengths.numpy().max()  # of similar length


def test_hidden_tokens_are_pairs_within_a_part():
    """Short answers and questions stay; elsewhere 15 %, of which eight tenths are the mask."""
    windows = windows_of(64, batch_size=400, mask_rate=0.15)
    size, width = 400, 64
    ids = np.full((size, width), 30, "int32")
    ids[:, 0], ids[:, 6], ids[:, -1] = (2, 3, 3)
    real = np.ones((size, width), "int32")
    mask = real * (np.arange(width) > 6) * (np.arange(width) < width - 1)
    mask[:, 0] = 1
    spans = np.zeros((size, 2), "int32")
    spans[: size // 2] = (30, 35)  # 23 before, 6 of the answer, 27 after
    batch = {
        **{"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": real, "answer_mask": mask},
        **{"spans": spans, "real": np.ones(size, "int32")},
        **{name: tf.constant(2, tf.int64) for name in ("window", "index", "count")},
    }
    made = windows.with_targets({name: tf.constant(x) for name, x in batch.items()})
    changed = made["token_ids"].numpy() != ids
    assert not changed[:, :7].any() and not changed[: size // 2, 30:36].any()
    assert changed[size // 2 :, 30:36].any()
    assert not changed[:, -1].any()
    context = made["token_ids"].numpy()[:, 7:-1]
    share = (context == small_corpus.tokenizer().mask_token_id).mean()
    # two chances of 7.5 % each, in all 0.144; four standard deviations of about 20,000 tokens, in
    # pairs; the 6 of the answer in half of the sequences are spared
    assert abs(share - 0.8 * 0.144 * (1 - 3 / 56)) < 4 * np.sqrt(2 * 0.11 / 22_400)
    assert made["labels"].numpy()[:, 0].tolist() == [30 * 64 + 35] * 200 + [0] * 200
    assert np.all(made["label_weights"] == 1.0)


def test_too_few_answers_are_an_error():
    windows = windows_of(24)
    windows.documents = lambda number: tf.constant([f"\0天\0{'地' * i}" for i in range(1, 30)])
    sequences = {**windows.chunks(0), "window": tf.constant(0, tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="At most half .* no answer. Lower `b"):
        list(windows.batches(sequences))
