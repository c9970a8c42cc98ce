"""Batches of a corpus: their contract, that no token is lost, and that only their place decides."""

import collections
import itertools
import re
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.pretraining import batches as batches_module
from roformer_tf.pretraining import windows
from roformer_tf.pretraining.batches import held_out_batches, ordered_batches
from roformer_tf.pretraining.corpus import read_shard
from roformer_tf.pretraining.packing import rounded_width
from roformer_tf.pretraining.settings import DataSettings
from roformer_tf.pretraining.windows import Windows, shards_in_window
from roformer_tf.text import text_segmentate
from tests.pretraining import small_corpus
from tests.pretraining.small_corpus import batches, digest, settings
from tests.processes import run_program

CLS, SEP = 2, 3
ALWAYS = {
    "token_ids": "int32",
    "segment_ids": "int32",
    "padding_mask": "int32",
    "mask_positions": "int32",
    "labels": "int32",
    "label_weights": "float32",
    "window": "int64",
    "index": "int64",
}
DOCUMENTS = {"position_ids": "int32", "document_ids": "int32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus")
    small_corpus.write_texts(path)
    return str(path)


def numpy(batch):
    return SimpleNamespace(**{name: value.numpy() for name, value in batch.items()})


# A dataset takes seconds to set up, however small: tests that need just some batches share these.
@pytest.fixture(scope="module", params=["none", "block_diagonal"])
def stream(folder, request):
    """The packing, and the first batches made with it."""
    return request.param, [numpy(b) for b in batches(folder, packing=request.param).take(16)]


def check(stream, packing, max_length=64):
    """Asserts the contract of a list of batches."""
    expected = ALWAYS | (DOCUMENTS if packing == "block_diagonal" else {})
    for b in stream:
        assert {name: value.dtype.name for name, value in vars(b).items()} == expected
        count, width = b.token_ids.shape
        assert count == 8 and width <= max_length
        for name, value in vars(b).items():
            assert len(value) == count
            if name in ("segment_ids", "padding_mask", *DOCUMENTS):
                assert value.shape == (count, width)
        lengths = b.padding_mask.sum(1)
        np.testing.assert_array_equal(b.padding_mask, np.arange(width) < lengths[:, None])
        assert width == int(rounded_width(lengths.max()))
        padding = b.padding_mask == 0
        for name in set(vars(b)) & {"token_ids", "segment_ids", *DOCUMENTS}:
            assert not getattr(b, name)[padding].any()
        assert b.label_weights.sum() > 0
        if packing == "block_diagonal":
            begins = (b.position_ids == 0) & ~padding
            np.testing.assert_array_equal(np.cumsum(begins, 1)[~padding], b.document_ids[~padding])
            steps = np.diff(b.position_ids, axis=1)
            assert (steps == 1)[(np.diff(b.document_ids, axis=1) == 0) & ~padding[:, 1:]].all()
        assert len(set(b.window)) == len(set(b.index)) == 1
    if packing == "block_diagonal":
        assert max(b.document_ids.max() for b in stream) > 1
    places = [place(b) for b in stream]
    assert places[0] == (0, 0) and places[-1][0] > 0
    for (w, i), following in itertools.pairwise(places):
        assert following in ((w, i + 1), (w + 1, 0))


def place(batch):
    return int(batch.window[0]), int(batch.index[0])


def after(stream, start):
    """The batches from a place on, as dictionaries."""
    return [vars(b) for b in stream if place(b) >= start]


def assert_same(batches, expected):
    count = 0
    for batch, other in zip(batches, expected, strict=False):
        assert set(batch) == set(vars(other))
        for name, value in batch.items():
            np.testing.assert_array_equal(value, getattr(other, name), name)
        count += 1
    assert count == len(expected)


def test_contract(stream):
    check(stream[1], stream[0])


@pytest.mark.parametrize(
    "options",
    [
        {"packing": "full", "objective": "causal_lm"},
        {"packing": "block_diagonal", "objective": "unilm"},
    ],
    ids=str,
)
def test_contract_of_other_objectives(folder, options):
    check([numpy(b) for b in batches(folder, **options).take(16)], options["packing"])


@pytest.mark.parametrize(
    ("packing", "objective"), [("none", "masked_lm"), ("block_diagonal", "unilm")]
)
def test_an_epoch_has_every_token_once(tmp_path, packing, objective):
    """All epochs have the same chunks, in another order and with other masks."""
    documents = small_corpus.write_texts(tmp_path, count=60)
    corpus, tokenizer = small_corpus.corpus(tmp_path), small_corpus.tokenizer()
    stage, data = settings(global_batch_size=1, packing=packing, objective=objective)
    own = Windows(corpus.shards, tokenizer, stage, data, (1, 2), len(corpus.shards))
    ends = own.objective.num_end_tokens
    expected = collections.Counter()
    room = stage.max_length - 1 - ends
    for chunk in text_segmentate(documents, stage.max_length, data.separators).flat_values:
        ids = tokenizer(chunk.numpy().decode()).numpy().tolist()
        expected.update(tuple(ids[i : i + room]) for i in range(0, len(ids), room))
    assert sum(expected.values()) > len(documents)  # long ones are split

    orders, masks = [], []
    for window in range(2):
        sequences = next(iter(own.sequences(tf.constant(window, tf.int64), 2)))
        order, masked, tokens = [], {}, 0
        for batch in own.batches(sequences).map(own.with_targets):
            b = numpy(batch)
            ids = b.token_ids[0].copy()
            if objective == "masked_lm":
                used = b.label_weights[0] > 0
                ids[b.mask_positions[0, used]] = b.labels[0, used]
            tokens += b.padding_mask.sum()
            numbers = b.document_ids[0] if packing == "block_diagonal" else b.padding_mask[0]
            for number in range(1, numbers.max() + 1):
                document = ids[numbers == number].tolist()
                assert document[0] == CLS and document[-1] == SEP and document.count(SEP) == ends
                order.append(tuple(x for x in document if x not in (CLS, SEP)))
                masked[order[-1]] = b.mask_positions[0].tolist()
        assert tokens == sequences["lengths"].numpy().sum()
        assert collections.Counter(order) == expected
        orders.append(order)
        masks.append(masked)
    assert orders[0] != orders[1]
    if objective == "masked_lm":  # short texts often have no mask, or the same one
        long = [text for text in masks[0] if len(text) >= 20]
        assert len(long) > 20
        assert sum(masks[0][text] == masks[1][text] for text in long) < 0.1 * len(long)


def check_parts(shards, monkeypatch, names):
    """Asserts that a shard is tokenized alike in small parts, some smaller than one chunk."""
    whole = shards.chunks(tf.constant(0, tf.int64))
    with monkeypatch.context() as patch:
        patch.setattr(windows, "_PART_BYTES", 300)
        parts = shards.chunks(tf.constant(0, tf.int64))
    assert set(whole) == names and whole["lengths"].numpy().max() > 200
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value)


def test_shards_are_tokenized_in_parts(folder, monkeypatch):
    corpus, tokenizer = small_corpus.corpus(folder), small_corpus.tokenizer()
    stage, data = settings(max_length=600)
    shards = Windows(corpus.shards, tokenizer, stage, data, (1, 2), 1, keep_all=True)
    check_parts(shards, monkeypatch, {"token_ids", "lengths"})


@pytest.mark.slow
def test_whole_words_of_a_character_level_model_are_those_of_jieba(tmp_path, monkeypatch):
    """As in Chinese-BERT-wwm: the characters of 经济 and 发展 are chosen together or not at all."""
    (tmp_path / "texts.txt").write_text("经济发展，" * 400, encoding="utf-8")
    characters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"经济发展，"]
    tokenizer = roformer_tf.RoFormerTokenizer(characters, word_level=False)
    stage, data = settings(max_length=300, global_batch_size=4, whole_word=True, mask_rate=0.5)
    corpus = small_corpus.corpus(tmp_path)
    own = Windows(corpus.shards, tokenizer, stage, data, (1, 2), 1, keep_all=True)
    check_parts(own, monkeypatch, {"token_ids", "lengths", "word_starts"})

    sequences = next(iter(own.sequences(tf.constant(0, tf.int64), 2)))
    batch = numpy(next(iter(own.batches(sequences).map(own.with_targets))))
    labels = np.zeros(batch.token_ids.shape, int)
    for index, slot in np.argwhere(batch.label_weights > 0):
        labels[index, batch.mask_positions[index, slot]] = batch.labels[index, slot]
    partners = {5: (6, 1), 6: (5, -1), 7: (8, 1), 8: (7, -1)}  # 经济, 发展
    checked = 0
    for index, position in np.argwhere(labels):
        partner, step = partners.get(labels[index, position], (0, 0))
        # chunks may be cut in the middle of a word
        if partner and 1 < position < labels.shape[1] - 3:
            assert labels[index, position + step] == partner
            checked += 1
    assert checked > 20


def test_whole_words_keep_the_settings_of_the_tokenizer(tmp_path):
    (tmp_path / "dict.txt").write_text("经济 10\n发展 10", encoding="utf-8")
    tokenizer = roformer_tf.RoFormerTokenizer(
        ["[PAD]", "<unk>", "<s>", "[SEP]", "[MASK]", *"经济发展", "<a>"],
        word_level=False,
        dictionary=tmp_path / "dict.txt",
        unk_token="<unk>",
        start_token="<s>",
        added_tokens=["<a>"],
    )
    tokens = Windows([], tokenizer, *settings(whole_word=True), (1, 2), 1)._tokenize(
        tf.constant(["经济<a>发展经"])
    )
    assert tokens["token_ids"].numpy().tolist() == [5, 6, 9, 7, 8, 5]
    assert tokens["word_starts"].numpy().tolist() == [True, False, True, True, False, True]


def test_starts_anywhere(folder, stream):
    """In the middle of a window, and after the last batch of one, with any number of threads."""
    packing, expected = stream
    last = next(i for i, b in enumerate(expected) if place(b)[0] == 1) - 1
    done = 5 if packing == "none" else last  # the last batch that a run has done
    window, index = place(expected[done])
    threads = 1 if packing == "none" else 8
    resumed = batches(folder, (window, index + 1), packing=packing, threads=threads)
    assert_same(resumed, expected[done + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["none"], indirect=True)
def test_another_process_makes_the_same(folder, stream, repository):
    command = sys.executable, "-m", "tests.pretraining.small_corpus", folder, "1", "2", "5"
    done = run_program(*command, cwd=repository, timeout=300)
    assert done.stdout.split()[-1] == digest(after(stream[1], (1, 2)), 5)


@pytest.mark.parametrize("stream", ["none"], indirect=True)
def test_seeds_and_stages_draw_differently(folder, stream):
    found = {digest(batches(folder, seed=s, stage_index=i), 1) for s, i in ((8, 0), (7, 1))}
    assert len(found | {digest(after(stream[1], (0, 0)), 1)}) == 3


@pytest.mark.parametrize("packing", ["none", "block_diagonal"])
def test_padding_is_under_five_percent(folder, packing):
    made = batches(folder, packing=packing, max_length=256, window_batches=16)
    masks = [b["padding_mask"].numpy() for b in made.take(40)]
    assert 1 - sum(m.sum() for m in masks) / sum(m.size for m in masks) < 0.05


def test_held_out(folder):
    corpus = small_corpus.corpus(folder, held_out=0.3)
    stage, data = settings()
    arguments = (corpus, small_corpus.tokenizer(), stage, data, 7)
    made = held_out_batches(*arguments)
    one, two = ([numpy(b) for b in made] for _ in range(2))
    documents = 0
    for a, b in zip(one, two, strict=True):
        for name in vars(a):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert len(a.token_ids) == stage.global_batch_size
        documents += a.padding_mask.any(1).sum()
        empty = ~a.padding_mask.any(1)
        assert not a.token_ids[empty].any() and not a.label_weights[empty].any()
    assert documents >= corpus.num_held_out > 50
    tokens = sum(b.padding_mask.sum() for b in one) - 2 * documents
    held_out = [d for name in corpus.held_out_shards for d in read_shard(name).numpy()]
    assert tokens == sum(len(document.decode()) for document in held_out)
    assert_same(held_out_batches(*arguments, max_batches=3), one[:3])


def test_a_corpus_smaller_than_a_window_repeats_itself(tmp_path):
    small_corpus.write_texts(tmp_path, count=3)
    stage, data = settings(window_batches=2)
    corpus = small_corpus.corpus(str(tmp_path))
    assert shards_in_window(corpus, stage, data) > len(corpus.shards)
    assert len(list(batches(str(tmp_path), window_batches=2).take(10))) == 10


def test_errors(folder):
    with pytest.raises(ValueError, match="far too few for 4 batches of 1000000"):
        batches(folder, global_batch_size=1_000_000)
    # a tenth of the characters that a sequence really holds
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        for _ in batches(
            folder, packing="full", chunk_characters=0.1, window_batches=1, max_length=512
        ).take(50):
            pass
    assert re.search("does not fill a batch of 8 sequences of 512 tokens.*Lower", str(error.value))


@pytest.fixture
def service(repository):
    """A dispatcher here and two workers in their own processes."""
    api = tf.data.experimental.service
    dispatcher = api.DispatchServer(api.DispatcherConfig(port=0))
    command = [sys.executable, repository / "tests/pretraining/service_worker.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    address = dispatcher.target.split("://")[1]
    workers = [subprocess.Popen([*command, address], **pipes) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == b"ready\n"
    yield dispatcher.target, workers
    for worker in workers:
        worker.kill()
        worker.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["block_diagonal"], indirect=True)
def test_service_gives_the_same_batches(folder, stream, service, monkeypatch):
    target, workers = service
    packing, expected = stream
    made = batches(folder, (1, 2), service=target, packing=packing)
    assert_same(made, [b for b in expected if place(b) >= (1, 2)])
    # an error when its workers are gone
    monkeypatch.setattr(batches_module, "TIMEOUT_SECONDS", 2.0)
    for worker in workers:
        worker.kill()
        worker.wait()
    with pytest.raises(
        tf.errors.UnknownError, match="did not return batch 1 of window 1: a worker"
    ):
        next(iter(made))


@pytest.mark.parametrize("stream", ["block_diagonal"], indirect=True)
def test_a_service_goes_on_after_the_last_batch_of_a_window(folder, stream, monkeypatch):
    """Without the service's processes: what they make comes as it is made here."""
    monkeypatch.setattr(tf.data.experimental.service, "distribute", lambda *_: lambda made: made)
    monkeypatch.setattr(batches_module, "TIMEOUT_SECONDS", 30.0)
    packing, expected = stream
    count = sum(place(b)[0] == 0 for b in expected)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        made = batches(folder, (0, count), service=address, packing=packing)
    assert_same(made, expected[count : count + 1])


def test_a_service_that_does_not_answer(monkeypatch):
    """TensorFlow would wait for it without end."""
    monkeypatch.setattr(tf.data.experimental.service, "distribute", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConnectionError, match=f"service at {address} cannot be reached .*Start"):
        ordered_batches(tf.data.Dataset.range(2), address)
    for wrong in ("localhost", "localhost:5050", "grpc://localhost", "grpc://host:port", "grpc://"):
        with pytest.raises(ValueError, match="`service` must be PROTOCOL://HOST:PORT.*Received"):
            DataSettings(files="a", service=wrong)


def in_order(places, start=(0, 0), then=(), timeout=0.2):
    """Places of batches after ordering, if they come as `places`; each window has three."""
    made = [{"window": [w], "index": [i], "count": [3]} for w, i in places]
    made = itertools.chain(made, then)
    stream = batches_module._in_order(made, "grpc://nowhere:1", start, timeout)
    return [(b["window"][0], b["index"][0]) for b in itertools.islice(stream, len(places))]


def test_batches_are_sorted(rng):
    places = [(w, i) for w in range(2, 7) for i in range(3)]
    shuffled = [places[i] for i in rng.permutation(len(places))]
    assert in_order(shuffled, start=(2, 0)) == places
    assert in_order(shuffled[::-1], start=(2, 0)) == places


def test_a_batch_that_does_not_come_is_an_error(monkeypatch):
    with pytest.raises(RuntimeError, match="batch 1 of window 0: .*no more batches"):
        in_order([(0, 0), (0, 2), (1, 0)])
    never = (threading.Event().wait() for _ in range(1))
    with pytest.raises(RuntimeError, match="batch 1 of window 0: .*none came in 0.2 seconds"):
        in_order([(0, 0), (0, 2), (1, 0)], then=never)
    many = [(0, 0), *((w, i) for w in range(1, 60) for i in range(3))]
    late = [*many, (0, 1), (0, 2)]  # late for a moment is not an error
    assert in_order(late, timeout=60.0) == sorted(late)
    monkeypatch.setattr(batches_module, "_MAX_SECONDS_AHEAD", 0.0)
    with pytest.raises(
        RuntimeError, match=r"batch 1 of window 0: .*other workers are at window 33"
    ):
        in_order(many)
