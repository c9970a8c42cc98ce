"""The batches of a multi-task run: which task each step trains, and its sequences."""

import json

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.pretraining import choose_strategy
from roformer_tf.pretraining.multi_task_run import MultiTaskRun, task_of_step
from tests.pretraining import multi_tasks
from tests.pretraining.readings import ANSWER


def test_tasks_are_drawn_by_their_frequencies():
    steps, frequencies = 4000, [60, 2, 5, 0.5]
    draw = tf.function(lambda step: task_of_step(step, 3, frequencies), autograph=False)
    drawn = np.array([int(draw(tf.constant(i, tf.int64))) for i in range(steps)])
    shares = np.bincount(drawn, minlength=4) / steps
    expected = np.array(frequencies) / sum(frequencies)
    # four standard deviations
    assert (abs(shares - expected) < 4 * np.sqrt(expected / steps)).all()
    assert int(task_of_step(tf.constant(0, tf.int64), 3, [0.0, 1.0])) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return multi_tasks.write(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run before its first step: its data, its model."""
    output = tmp_path_factory.mktemp("run")
    settings = multi_tasks.settings(folder, names=("topics", "pairs", "webqa"))
    return MultiTaskRun(settings, output, choose_strategy(), [], False, False)


def take(run, count, first_step=0, places=((0, 0),) * 4):
    batches = run.batches_from(0, first_step, list(places))
    return list(batches.take(count).as_numpy_iterator())


@pytest.fixture(scope="module")
def first_batches(run):
    """As many as the tests need: a stream takes seconds to set up."""
    return take(run, 90)


@pytest.mark.slow
def test_a_batch_is_a_function_of_its_place(run, first_batches):
    whole = first_batches[:24]
    tasks = [int(batch["task"][0]) for batch in whole]
    drawn = [int(task_of_step(tf.constant(i, tf.int64), 4, [2, 1, 1, 2])) for i in range(24)]
    assert tasks == drawn and set(tasks) == {0, 1, 2, 3}
    places = [[0, 0] for _ in range(4)]
    for batch in whole[:14]:
        assert all(batch[name].min() == batch[name].max() for name in ("window", "index", "task"))
        places[batch["task"][0]] = [int(batch["window"][0]), int(batch["index"][0]) + 1]
    for mine, other in zip(take(run, 10, 14, places), whole[14:], strict=True):
        assert sorted(mine) == sorted(other)
        for name, value in mine.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.slow
def test_labelled_batches_are_what_the_preprocessor_makes(run, first_batches, folder):
    """Each sequence is an example with its label, except for the tokens that are hidden."""
    tokenizer = run.tokenizer
    lines = (folder / "topics.tsv").read_text(encoding="utf-8").splitlines()[1:]
    table = [line.split("\t")[1:] for line in lines]
    single = {tuple(run.preprocessors[0]([t])["token_ids"][0].numpy()): y for t, y in table}
    pairs = [json.loads(line) for line in (folder / "pairs.json").read_text().splitlines()]
    both = {
        tuple(run.preprocessors[1](([p["a"]], [p["b"]]))["token_ids"][0].numpy()): p["label"]
        for p in pairs
    }
    seen, hidden, tokens = {1: 0, 2: 0}, 0, 0
    for batch in first_batches:
        task = int(batch["task"][0])
        if task not in seen:
            continue
        assert batch["token_ids"].shape[0] == (8 if task == 1 else 4)
        assert batch["labels"].shape[1] == 1 and (batch["label_weights"] == 1).all()
        assert (batch["segment_ids"] == 0).all() and (batch["mask_positions"] == 0).all()
        for ids, real, label in zip(batch["token_ids"], batch["padding_mask"], batch["labels"]):
            ids = ids[: real.sum()]
            assert (batch["token_ids"] * (1 - batch["padding_mask"]) == 0).all()
            seen[task] += 1
            if task == 2:
                assert len(ids) <= 28 and both[tuple(ids)] == label[0]
                continue
            if len(ids) == 32:  # cut
                continue
            matches = [y for x, y in single.items() if _same_but_hidden(ids, x)]
            assert multi_tasks.LABELS[label[0]] in matches
            hidden += int((ids == tokenizer.mask_token_id).sum())
            tokens += len(ids) - 2
    assert min(seen.values()) > 20
    # 15 % in pairs, of which 80 % are masks; four standard deviations of about 1000 tokens
    assert 0.12 - 0.05 < hidden / tokens < 0.12 + 0.05


def _same_but_hidden(ids, original):
    if len(ids) != len(original):
        return False
    different = np.array(ids) != np.array(original)
    return different.mean() < 0.6 and not different[0] and not different[-1]


@pytest.mark.slow
def test_labels_of_reading_are_its_answers(run, first_batches):
    of_reading = [batch for batch in first_batches if batch["task"][0] == 3]
    assert len(of_reading) > 5
    answer = [run.tokenizer.token_to_id(character) for character in ANSWER]
    for batch in of_reading:
        width = batch["token_ids"].shape[1]
        start, end = np.divmod(batch["labels"][:, 0], width)
        assert (end == 0).sum() <= 4 and width <= 32
        for row, (first, last) in enumerate(zip(start, end)):
            found = batch["token_ids"][row, first : last + 1].tolist()
            assert found == (answer if last else [run.tokenizer.start_token_id])


def test_heads_have_weights_of_their_own(run):
    variables = run._variables()
    paths = [v.path for v in run.pretrainer.weights] + [
        v.path for v in run.pretrainer.optimizer.variables
    ]
    assert len(variables) == len(paths)
    assert "model/task_1/logits/kernel" in variables and "model/task_2/logits/bias" in variables
