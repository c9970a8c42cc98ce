"""Evaluates models trained at 128 tokens on texts of 128 … 2048, with each rule of length scaling.

    python experiments/compare_positions.py --schemes rotary             # trains the models; --models names others
    python experiments/length_extrapolation.py
    python experiments/length_extrapolation.py --report

Windows of 2,016 tokens of held-out documents are masked once. Each window is then read as 16
sequences of 126 tokens, as 8 of 252, and so on up to one of 2,016, between [CLS] and [SEP]. The
same tokens are predicted at every length, with more and more text around them: a loss that falls
with the length means that the model uses the longer context.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import experiment
import keras
import numpy as np
from compare_positions import load_settings, load_texts
from experiment import ROOT, Results, draw, markdown_table, mean_and_spread

from roformer_tf import RoFormerMaskedLM
from roformer_tf.pretraining import Pretrainer
from roformer_tf.pretraining.corpus import read_shard

RULES = {
    "none": "none",
    "linear": "linear (position interpolation)",
    "ntk": "NTK-aware",
    "dynamic": "dynamic NTK",
    "yarn": "YaRN",
}
SETTINGS = {
    "trained_length": 128,
    "most_times": 16,  # the longest sequences are so many times as long
    "windows": 64,
    "mask_rate": 0.15,
    "batch_tokens": 8192,
}


def scaling(rule, times, trained_length):
    """Returns the argument `rope_scaling` for sequences `times` as long as those of the training."""
    if rule == "none" or times == 1:
        return None
    if rule == "dynamic":  # computes the factor from the length of the sequence
        return {
            "rope_type": rule,
            "factor": 1.0,
            "original_max_position_embeddings": trained_length,
        }
    config = {"rope_type": rule, "factor": float(times)}
    if rule == "yarn":
        config["original_max_position_embeddings"] = trained_length
    return config


def masked_windows(corpus, tokenizer, settings):
    """Masks windows of held-out documents.

    Returns:
        Token ids with masks, labels, and a boolean mask of the predicted ones, each `(windows, tokens)`.
    """
    size = settings["most_times"] * (settings["trained_length"] - 2)
    windows = []
    for chunk in corpus.held_out_shards:
        texts = [text.decode("utf-8") for text in read_shard(chunk).numpy()]
        for ids in tokenizer(texts):
            windows += [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    if not windows:
        raise SystemExit(f"No held-out document has {size} tokens; use longer documents.")
    labels = np.array(windows[: settings["windows"]], "int32")
    rng = np.random.default_rng(0)
    special = np.isin(labels, tokenizer.special_token_ids)
    predicted = (rng.random(labels.shape) < settings["mask_rate"]) & ~special
    # as in training: 80 % [MASK], 10 % a random token, 10 % unchanged
    draw_of = rng.random(labels.shape)
    hidden = np.where(draw_of < 0.8, tokenizer.mask_token_id, labels)
    random_ids = rng.integers(1, tokenizer.vocabulary_size(), labels.shape, "int32")
    hidden = np.where((draw_of >= 0.8) & (draw_of < 0.9), random_ids, hidden)
    return np.where(predicted, hidden, labels).astype("int32"), labels, predicted


def batches(windows, times, tokenizer, settings):
    """Yields the windows as sequences of `times` times the trained length, batched for
    `Pretrainer.evaluate_batches`.
    """
    size = times * (settings["trained_length"] - 2)
    tokens, labels, predicted = (x.reshape(-1, size) for x in windows)
    ends = [np.full((len(tokens), 1), tokenizer.start_token_id, "int32"), tokens]
    ends.append(np.full((len(tokens), 1), tokenizer.end_token_id, "int32"))
    tokens = np.concatenate(ends, axis=1)
    slots = max(predicted.sum(-1).max(), 1)
    positions = np.argsort(~predicted, axis=1, kind="stable")[:, :slots]  # predicted ones first
    weights = np.take_along_axis(predicted, positions, 1).astype("float32")
    batch_size = max(settings["batch_tokens"] // (size + 2), 1)
    for i in range(0, len(tokens), batch_size):
        part = slice(i, i + batch_size)
        yield {
            "token_ids": tokens[part],
            "segment_ids": np.zeros_like(tokens[part]),
            "padding_mask": np.ones_like(tokens[part]),
            "mask_positions": (positions[part] + 1).astype("int32"),
            "labels": np.take_along_axis(labels, positions, 1)[part],
            "label_weights": weights[part],
        }


def evaluate(folder, rule, windows, tokenizer, settings):
    """Computes loss and accuracy of a model at each length."""
    result = {"length": [], "loss": [], "accuracy": []}
    times = 1
    while times <= settings["most_times"]:
        keras.backend.clear_session()
        model = RoFormerMaskedLM.from_preset(
            str(experiment.existing(folder)),
            rope_scaling=scaling(rule, times, settings["trained_length"]),
        )
        figures = Pretrainer(model).evaluate_batches(batches(windows, times, tokenizer, settings))
        result["length"].append(times * settings["trained_length"])
        result["loss"].append(round(figures["loss"], 5))
        result["accuracy"].append(round(figures["accuracy"], 5))
        times *= 2
    return {**result, "predicted": int(figures["tokens"]), "windows": len(windows[0])}


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = experiment.with_values(SETTINGS, args.set)
    corpus, tokenizer = load_texts(load_settings(args.settings, args.data, args.output))
    windows = masked_windows(corpus, tokenizer, settings)
    results = Results(args.results)
    for seed in args.seeds:
        for rule in args.rules:
            folder = args.models.format(seed=seed)
            results.run(
                f"{rule}-{seed}",
                {"rule": rule, "seed": seed, "corpus": corpus.fingerprint, **settings},
                lambda folder=folder, rule=rule: evaluate(
                    folder, rule, windows, tokenizer, settings
                ),
                model=folder,
            )


def report(results):
    """Draws the plot and the tables of the finished runs."""
    groups = results.grouped("rule")
    groups = {rule: groups[rule] for rule in RULES if rule in groups}

    def curves(name):
        return {
            RULES[rule]: [(r["result"]["length"], r["result"][name]) for r in runs]
            for rule, runs in groups.items()
        }

    lengths = next(iter(groups.values()))[0]["result"]["length"]

    def table(name, form, scale=1):
        return markdown_table(
            ["", *lengths],
            [
                [
                    RULES[rule],
                    *(
                        mean_and_spread([scale * r["result"][name][i] for r in runs], form)
                        for i in range(len(lengths))
                    ),
                ]
                for rule, runs in groups.items()
            ],
        )

    axes = {"x": "tokens in a sequence", "log_x": True}
    draw(
        results.picture(),
        [
            {"title": "Loss", "y": "masked-LM loss", "curves": curves("loss"), **axes},
            {"title": "Accuracy", "y": "accuracy", "curves": curves("accuracy"), **axes},
        ],
    )
    record = next(iter(groups.values()))[0]
    settings, result = record["settings"], record["result"]
    results.write_report(
        "Longer texts than the model was trained on",
        f"RoFormers trained at {settings['trained_length']} tokens, on {result['windows']} windows of held-out "
        f"documents. The same {result['predicted']:,} tokens are predicted at every length; a sequence of "
        "nominal length L has 2 L/128 - 2 tokens fewer, so that the windows divide evenly. "
        "The factor of linear, NTK-aware and YaRN is length / trained length; dynamic NTK computes it "
        "from the sequence. Mean ± standard deviation (number of "
        "models, each trained with its own seed).",
        "Masked-LM loss:",
        table("loss", "{:.3f}"),
        "Accuracy, %:",
        table("accuracy", "{:.1f}", 100),
        f"![loss and accuracy by length]({results.picture().name})",
    )


def main():
    parser = experiment.make_parser(__doc__, "length_extrapolation")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--settings", default=str(ROOT / "experiments" / "positions.toml"))
    output = ROOT / "output" / "compare_positions"
    parser.add_argument(
        "--output", default=str(output), help="folder of the corpus and vocabulary of the models"
    )
    parser.add_argument(
        "--models",
        default=str(output / "rotary-{seed}" / "stage-1-128"),
        help="folder of a model, with {seed} in place of its seed",
    )
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
