"""A small multi-task run: texts of the masked LM, and a labelled task of each kind."""

import json

import numpy as np

from roformer_tf.pretraining import MultiTaskSettings
from tests.pretraining import readings, small_corpus
from tests.pretraining.builders import changed, run_values

LABELS = ["少", "中", "多"]
STAGES = [
    {"max_length": 32, "global_batch_size": 8, "steps": 6, "learning_rate": 1e-2},
    {"max_length": 24, "global_batch_size": 8, "steps": 6, "learning_rate": 5e-3},
]


def write(folder):
    """Writes texts, tasks of single texts (.tsv), pairs and reading (.json), and the vocabulary."""
    rng = np.random.default_rng(1)
    small_corpus.write_texts(folder, count=60)  # one shard
    readings.write(folder)

    def text(most):
        return "".join(rng.choice(small_corpus.CHARACTERS, size=rng.integers(1, most)))

    rows = [(text(40), str(rng.choice(LABELS))) for _ in range(90)]
    table = "".join(f"{number}\t{a}\t{b}\n" for number, (a, b) in enumerate(rows))
    (folder / "topics.tsv").write_text(f"id\tsentence\tlabel\n{table}", encoding="utf-8")
    pairs = [{"a": text(20), "b": text(20), "label": int(rng.integers(2))} for _ in range(90)]
    lines = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    (folder / "pairs.json").write_text(lines, encoding="utf-8")
    small_corpus.write_vocabulary(folder)
    return folder


def values(folder, names=("topics", "pairs"), stages=STAGES, **tables):
    """Settings of a run of these tasks as a nested dict; `tables` change single values."""
    tasks = {
        "topics": {
            "files": [str(folder / "topics.tsv")],
            "text": "sentence",
            "label": "label",
            "labels": LABELS,
            "frequency": 1,
            "mask_rate": 0.15,
            "held_out": 0.2,
        },
        "pairs": {
            "files": [str(folder / "pairs.json")],
            "text": "a",
            "text_pair": "b",
            "label": "label",
            "labels": ["0", "1"],
            "frequency": 1,
            "max_length": 28,
            "batch_size": 4,
            "pooling": "mean",
        },
        "webqa": {
            **readings.FIELDS,
            "files": [str(folder / "questions.json")],
            "frequency": 2,
            "mask_rate": 0.15,
            "held_out": 0.2,
            "chunk_step": 8,
        },
    }
    values = run_values(
        folder,
        stages,
        data={"frequency": 2, "window_batches": 3},
        tasks={name: tasks[name] for name in names},
        model={"norm": "rms_norm", "activation": "relu"},
        optimizer={"name": "original_lamb"},
        run={"checkpoint_every": 4, "held_out_batches": 3},
    )
    return changed(values, tables)


def settings(folder, *args, **kwargs):
    """Settings of these `values`."""
    return MultiTaskSettings.from_dict(values(folder, *args, **kwargs))
