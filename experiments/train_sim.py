"""Trains a small RoFormer-Sim on pairs of short English paraphrases.

    python experiments/compare_positions.py --schemes rotary --seeds 0     # trains the model to start from
    python experiments/train_sim.py
    python -m roformer_tf similar output/roformer-sim-english "How can I learn English quickly?"
    python -m roformer_tf embed output/roformer-sim-english "It's raining." "It is raining." "The dog sleeps."

As in the original, a masked language model becomes a UniLM with a pooler. It learns pairs in both directions, with the
language model's loss and the in-batch contrastive loss. The original learned similar questions and sentences of the
Chinese web; ours learns, from `--data`,

* en_de_tatoeba: English sentences that share a German translation, such as "We're here." and "We've arrived.";
* glue/qqp: questions of Quora that people marked as duplicates.

In each epoch a group of n sentences gives n // 2 random pairs, so that a batch rarely holds two
pairs of one group. One group of Tatoeba in 20 is held out, with all of its sentences. The held-out
figures are the share of texts whose nearest text, among all of a set, is their partner; and
Spearman's correlation of cosine and human score on STS-B, which is never trained on, with the
correlation of the shared words for comparison.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import collections
import json
import time
from pathlib import Path

import experiment
import keras
import numpy as np
import tensorflow as tf
from experiment import ROOT, read_table
from scipy.stats import spearmanr

from roformer_tf import RoFormerSim
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.optimizers import LinearWarmupDecay

SETTINGS = {
    "epochs": 20,
    "batch_size": 48,  # pairs; the original's 96 sequences
    "learning_rate": 5e-4,  # the original's 1e-5 is for a larger model and a million steps
    "weight_decay": 0.01,
    "dropout": 0.1,
    "sequence_length": 64,
    "source_mask_rate": 0.5,
    "loss_weight": 1.0,  # of the contrastive loss; the language model's is 1
    "seed": 0,
}
SAMPLES = (
    "How can I learn English quickly?",
    "What is the best way to lose weight?",
    "I don't know what to do.",
    "Tom is very tired.",
    "Where is the train station?",
)


def paraphrases(path):
    """Groups English sentences by their German translation."""
    groups = collections.defaultdict(dict)
    for row in read_table(path):
        groups[row["de"]][row["en"]] = None
    return [list(group) for group in groups.values() if len(group) > 1]


def duplicates(path):
    """Reads the pairs of questions that are marked as duplicates."""
    rows = [row for row in read_table(path) if row["label"] == "1"]
    return [[row["question1"], row["question2"]] for row in rows]


def load_groups(data):
    """Loads the groups of paraphrases to train on, and the held-out ones, as dicts by source."""
    tatoeba = paraphrases(Path(data) / "en_de_tatoeba" / "train.tsv.xz")
    order = np.random.default_rng(0).permutation(len(tatoeba))
    held = [tatoeba[i] for i in order[::20]]
    # a sentence has several translations, and so may be in several groups
    seen = {text for group in held for text in group}
    learned = [[text for text in tatoeba[i] if text not in seen] for i in sorted(order)]
    qqp = Path(data) / "glue" / "qqp"
    return (
        {
            "tatoeba": [group for group in learned if len(group) > 1],
            "qqp": duplicates(qqp / "train.tsv.xz"),
        },
        {"tatoeba": held, "qqp": duplicates(qqp / "valid.tsv.xz")},
    )


def draw_pairs(groups, rng):
    """N // 2 pairs of every group of n texts, in random order: a list of `(text, text)`."""
    pairs = []
    for group in groups:
        order = rng.permutation(len(group))
        pairs += [(group[i], group[j]) for i, j in zip(order[::2], order[1::2], strict=False)]
    return [pairs[i] for i in rng.permutation(len(pairs))]


def pair_batches(groups, batch_size, seed):
    """Makes an endless dataset of `((first, second),)`, strings `(batch,)`; returns it and the batches of an epoch."""
    steps = sum(len(group) // 2 for group in groups) // batch_size

    def epochs():
        rng = np.random.default_rng(seed)
        while True:
            pairs = draw_pairs(groups, rng)[: steps * batch_size]
            for start in range(0, len(pairs), batch_size):
                yield tuple(zip(*pairs[start : start + batch_size], strict=True))

    dataset = tf.data.Dataset.from_generator(
        epochs, output_signature=(tf.TensorSpec([None], tf.string),) * 2
    )
    return dataset.map(lambda *pair: (pair,)), steps


def partner_is_nearest(sim, pairs):
    """Computes the share of texts whose nearest other text is their partner."""
    vectors = sim.embed([text for pair in pairs for text in pair])
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2.0)
    return float((cosines.argmax(axis=1) == np.arange(len(cosines)) ^ 1).mean())


def measure(sim, held_out, sts):
    """Computes the held-out figures, see above."""
    figures = {
        f"nearest_{name}": partner_is_nearest(sim, pairs) for name, pairs in held_out.items()
    }
    first, second, scores = sts
    cosines = (sim.embed(first) * sim.embed(second)).sum(axis=1)
    return {**figures, "spearman_stsb": float(spearmanr(cosines, scores).statistic)}


def common_words(first, second):
    """Computes the share of words that two texts have in common, a baseline for the model."""
    first, second = set(first.lower().split()), set(second.lower().split())
    return len(first & second) / len(first | second)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data"))
    parser.add_argument(
        "--model",
        default=str(ROOT / "output" / "compare_positions" / "rotary-0" / "stage-1-128"),
        help="original folder of the English model to start from",
    )
    parser.add_argument("--output", default=str(ROOT / "output" / "roformer-sim-english"))
    parser.add_argument("--steps-per-epoch", type=int, help="fewer than in an epoch, for a trial")
    experiment.add_settings(parser, SETTINGS)
    args = parser.parse_args()
    settings = experiment.with_values(SETTINGS, args.set)
    keras.utils.set_random_seed(settings["seed"])

    sim = RoFormerSim.from_preset(
        str(experiment.existing(args.model)),
        strict=False,  # a masked language model has no pooler yet
        dropout=settings["dropout"],
        attention_dropout=settings["dropout"],
        sequence_length=settings["sequence_length"],
        source_mask_rate=settings["source_mask_rate"],
    )
    groups, held_out = load_groups(args.data)
    print({name: f"{len(g):,} groups, {sum(map(len, g)):,} texts" for name, g in groups.items()})
    dataset, steps = pair_batches(
        [group for each in groups.values() for group in each],
        settings["batch_size"],
        settings["seed"],
    )
    steps = min(args.steps_per_epoch or steps, steps)
    rng = np.random.default_rng(settings["seed"])
    held_out = {name: draw_pairs(each, rng) for name, each in held_out.items()}
    rows = read_table(Path(args.data) / "glue" / "stsb" / "valid.tsv.xz")
    sts = tuple([row[name] for row in rows] for name in ("sentence1", "sentence2"))
    sts = (*sts, [float(row["score"]) for row in rows])
    words = [common_words(*pair) for pair in zip(*sts[:2], strict=True)]
    figures = {
        "pairs": {name: len(pairs) for name, pairs in held_out.items()},
        "common_words": {"spearman_stsb": float(spearmanr(words, sts[2]).statistic)},
        "before": measure(sim, held_out, sts),
    }

    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    sim.compile(
        keras.optimizers.AdamW(
            LinearWarmupDecay(settings["learning_rate"], settings["epochs"] * steps, 0.1),
            weight_decay=settings["weight_decay"],
            global_clipnorm=1.0,
        ),
        loss_weights={"logits": 1.0, "pooled_output": settings["loss_weight"]},
        jit_compile=False,  # XLA would compile each length again
    )
    start, cpu = time.time(), time.process_time()
    history = sim.fit(
        dataset,
        steps_per_epoch=steps,
        epochs=settings["epochs"],
        callbacks=[keras.callbacks.CSVLogger(str(output / "log.csv"))],
        verbose=2,
    )
    figures["seconds"] = round(time.time() - start, 1)
    figures["cpu_seconds"] = round(time.process_time() - cpu, 1)
    figures["last_epoch"] = {name: values[-1] for name, values in history.history.items()}
    figures["after"] = measure(sim, held_out, sts)
    save_checkpoint(sim, output)
    figures["samples"] = {text: sim.similar(text, n=50, k=5, max_length=64) for text in SAMPLES}
    text = json.dumps({"settings": settings, **figures}, indent=1, ensure_ascii=False)
    experiment.write_text(output / "figures.json", text + "\n")
    print(text)


if __name__ == "__main__":
    main()
