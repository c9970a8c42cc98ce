"""Trains a small model with each position scheme: figure 3 (left) of the paper, with all of its rivals.

    python experiments/compare_positions.py                     # all runs, then the report
    python experiments/compare_positions.py --schemes learned rotary --seeds 0 1 2
    python experiments/compare_positions.py --report

BERT (learned absolute positions) and RoFormer (rotary) run with every seed of `--seeds`, the others with the first one.
They share the model, texts and budget of positions.toml, and with one seed they see the same batches.
The trained models stay in `--output`, where finetune_glue.py, length_extrapolation.py and train_sim.py look for them.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import dataclasses
import functools
import hashlib
import statistics
from pathlib import Path

import experiment
import keras
import tensorflow as tf
from experiment import ROOT, Results, draw, markdown_table, mean_and_spread
from tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset import bert_vocab_from_dataset

from roformer_tf.layers.position_schemes import POSITION_SCHEMES
from roformer_tf.pretraining import (
    Pretrainer,
    PretrainingSettings,
    held_out_batches,
    prepare_corpus,
    pretrain,
)
from roformer_tf.pretraining.callbacks import LOG_COLUMNS, CsvLog
from roformer_tf.pretraining.corpus import read_shard
from roformer_tf.pretraining.models import make_tokenizer

# label, equation of the paper, options of the scheme; the first two are figure 3
SCHEMES = {
    "learned": ("BERT: learned absolute", "3", {}),
    "rotary": ("RoFormer: rotary", "16", {}),
    "rotary_learned": ("rotary, frequencies learned", "–", {"learned": True}),
    "rotary_half": ("rotary, half of each head", "–", {"rotary_dim": "half"}),
    "rotary_values": ("rotary, values too", "–", {"on_values": True}),
    "none": ("no positions", "–", {}),
    "sinusoidal": ("sinusoidal, added", "4", {}),
    # token embeddings begin at 0.02, and sines of size 1 drown them
    "sinusoidal_scaled": ("sinusoidal × 0.02, added", "4", {"scale": 0.02}),
    "relative": ("Shaw et al.", "5", {}),
    "sinusoidal_relative": ("NEZHA: sinusoidal form of 5", "5", {}),
    "transformer_xl": ("Transformer-XL", "7", {}),
    "t5": ("T5 bias", "8", {}),
    "tupe": ("TUPE", "9", {}),
    "deberta": ("DeBERTa", "10", {}),
}
FIGURE = ("learned", "rotary")
VOCABULARY_SIZE = 8192
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POINTS = 100  # of the training curve: means over so many parts of the run
LOOKS = 20  # at held-out text during a run
LOOK_BATCHES = 8  # of those that the final figures are computed on


class HeldOutCurve(keras.callbacks.Callback):
    """Logs loss and accuracy on held-out batches every few steps to a CSV file, which a resumed run continues."""

    def __init__(self, path, batches, every):
        super().__init__()
        self.log = CsvLog(path, ("step", "loss", "accuracy"))
        self.batches, self.every = batches, every

    def on_train_begin(self, logs=None):
        self.log.keep(lambda row: int(row["step"]) <= self.model.steps_done)

    def on_train_batch_end(self, batch, logs=None):
        step = self.model.steps_done
        if step % self.every == 0:
            figures = self.model.evaluate_batches(self.batches)
            self.log.append({"step": step, **{k: figures[k] for k in ("loss", "accuracy")}})


def make_wordpieces(corpus, size):
    """Makes an uncased WordPiece vocabulary of the training texts, as BERT's was made."""
    # a quarter of the texts: the work grows with the number of different words
    texts = tf.data.Dataset.from_tensor_slices(corpus.shards[::4]).map(read_shard)
    return bert_vocab_from_dataset(
        texts,
        size,
        SPECIAL_TOKENS,
        {"lower_case": True},
        {"upper_thresh": 1000},  # a word this frequent is a token; halves the search
    )[:size]


def load_settings(path, data, output):
    """Loads the settings of all runs, with the texts under `data` and all outputs under `output`."""
    settings = PretrainingSettings.from_file(path)
    output = Path(output).absolute()
    changes = {
        "data.cache": str(output / "corpus"),
        "model.vocabulary": str(output / "vocab.txt"),
    }
    texts = Path(data) / "en_pretrain"
    if texts.exists():
        changes["data.files"] = [str(texts / "*.jsonl*")]
    return settings.with_values(changes)


def load_texts(settings):
    """Loads the corpus and the tokenizer. Makes the vocabulary the first time."""
    data, vocabulary = settings.data, Path(settings.model.vocabulary)
    try:
        corpus = prepare_corpus(data.files, data.cache, held_out=data.held_out)
    except FileNotFoundError as error:
        raise SystemExit(f"{error} --data must name the folder that holds en_pretrain.") from error
    if not vocabulary.exists():
        print("making the vocabulary ...", flush=True)
        tokens = make_wordpieces(corpus, VOCABULARY_SIZE)
        experiment.write_text(vocabulary, "".join(f"{token}\n" for token in tokens))
    return corpus, make_tokenizer(settings.model)


def settings_of_run(settings, name, seed):
    """Adds a scheme and a seed to the common settings."""
    options = dict(SCHEMES[name][2])
    if options.get("rotary_dim") == "half":
        options["rotary_dim"] = settings.model.hidden_dim // settings.model.num_heads // 2
    changes = {"run.seed": seed, "model.position_scheme": scheme_of(name)}
    if options:
        changes["model.position_options"] = options
    return settings.with_values(changes)


def scheme_of(name):
    """Returns the position scheme behind a key of `SCHEMES`."""
    return name if name in POSITION_SCHEMES else name.split("_")[0]


def train(settings, held_out, folder):
    """Trains one model in `folder`. Returns its curves and its figures on the `held_out` batches."""
    (stage,) = settings.stages
    every = max(stage.steps // LOOKS, 1)
    curve = HeldOutCurve(folder / "curve.csv", held_out[:LOOK_BATCHES], every)
    folder.mkdir(parents=True, exist_ok=True)
    keras.backend.clear_session()
    trained = pretrain(settings, folder, callbacks=[curve])
    if not trained.completed:
        print("Stopped and saved. The same command continues from here.", flush=True)
        raise SystemExit(128 + trained.signal)
    log = CsvLog(folder / "log.csv", LOG_COLUMNS).rows()
    rows = curve.log.rows()
    return {
        "training": means(log, max(len(log) // POINTS, 1)),
        "held_out": {
            name: [float(row[name]) for row in rows] for name in ("step", "loss", "accuracy")
        },
        "final": Pretrainer(trained.task).evaluate_batches(held_out),
        "weights": trained.task.count_params(),
        "tokens": int(log[-1]["tokens"]),
        "tokens_per_second": statistics.median(float(row["tokens_per_second"]) for row in log),
        "model": f"stage-1-{stage.max_length}",
    }


def means(log, width):
    """Averages the training curve over parts of `width` steps, each at its last step."""
    parts = [log[i : i + width] for i in range(0, len(log), width)]
    return {
        "step": [int(part[-1]["step"]) for part in parts],
        "loss": [round(statistics.fmean(float(row["loss"]) for row in part), 5) for part in parts],
    }


def kept_settings(settings):
    """Returns the settings as a dict without paths: the contents of the files are what counts."""
    kept = dataclasses.asdict(settings)
    for table, key in (("data", "files"), ("data", "cache"), ("model", "vocabulary")):
        kept[table].pop(key)
    return kept


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = load_settings(args.settings, args.data, args.output)
    corpus, tokenizer = load_texts(settings)
    (stage,) = settings.stages
    most = settings.run.held_out_batches

    @functools.cache
    def held_out():  # the same batches with the same masks for all runs
        return list(held_out_batches(corpus, tokenizer, stage, settings.data, 0, most))

    words = "\n".join(tokenizer.get_vocabulary())
    kept = kept_settings(settings)
    kept["corpus"] = corpus.fingerprint
    kept["vocabulary"] = hashlib.sha256(words.encode()).hexdigest()
    results = Results(args.results)
    for name in args.schemes:
        for seed in args.seeds if name in FIGURE else args.seeds[:1]:
            own = settings_of_run(settings, name, seed)
            results.run(
                f"{name}-{seed}",
                {"scheme": name, "seed": seed, "common": kept},
                lambda own=own, name=name, seed=seed: train(
                    own, held_out(), Path(args.output) / f"{name}-{seed}"
                ),
            )


def report(results):
    """Draws the curves and the table of the finished runs."""
    groups = results.grouped("scheme")
    groups = {name: groups[name] for name in SCHEMES if name in groups}

    def curves(names, kind):
        return {
            SCHEMES[name][0]: [(r["result"][kind]["step"], r["result"][kind]["loss"]) for r in runs]
            for name, runs in groups.items()
            if name in names
        }

    axes = {"x": "step", "y": "masked-LM loss"}
    draw(
        results.picture(),
        [
            {"title": "Training loss", "curves": curves(FIGURE, "training"), **axes},
            {"title": "Held-out loss", "curves": curves(FIGURE, "held_out"), **axes},
        ],
    )
    draw(
        results.picture("all"),
        [{"title": "Held-out loss", "curves": curves(SCHEMES, "held_out"), **axes}],
        width=9,
    )
    rotary = {r["settings"]["seed"]: final_loss(r) for r in groups.get("rotary", [])}
    rows = []
    for name, runs in sorted(
        groups.items(), key=lambda item: statistics.mean(map(final_loss, item[1]))
    ):
        label, equation, _ = SCHEMES[name]
        pairs = ((r, rotary.get(r["settings"]["seed"])) for r in runs)
        against = [final_loss(r) - other for r, other in pairs if other is not None]
        rows.append(
            (
                label,
                equation,
                mean_and_spread([final_loss(r) for r in runs]),
                "–" if name == "rotary" else mean_and_spread(against, "{:+.3f}"),
                mean_and_spread([r["result"]["final"]["accuracy"] * 100 for r in runs], "{:.1f}"),
                f"{runs[0]['result']['weights']:,}",
            )
        )
    header = "scheme | equation | held-out loss | against rotary, same seed | accuracy % | weights"
    common = next(iter(groups.values()))[0]["settings"]["common"]
    model, (stage,) = common["model"], common["stages"]
    predicted = next(iter(groups.values()))[0]["result"]["final"]["tokens"]
    results.write_report(
        "Position schemes in masked-LM pretraining",
        f"{model['num_layers']} layers of {model['hidden_dim']}, {model['num_heads']} heads, {model['dtype']}; "
        f"{stage['steps']:,} steps of {stage['global_batch_size']} sequences of {stage['max_length']} tokens, learning "
        f"rate {stage['learning_rate']:g}. Loss and accuracy on the same {predicted:,.0f} masked tokens of held-out "
        "documents. Mean ± standard deviation (number of seeds).",
        markdown_table(header.split(" | "), rows),
        f"![BERT and RoFormer]({results.picture().name})",
        "Lines are means over the seeds; bands span the lowest to the highest.",
        f"![all schemes]({results.picture('all').name})",
    )


def final_loss(record):
    """Returns the held-out loss after the last step of a run."""
    return record["result"]["final"]["loss"]


def main():
    parser = experiment.make_parser(__doc__, "compare_positions")
    known = [name for name in SCHEMES if scheme_of(name) in POSITION_SCHEMES]
    parser.add_argument("--schemes", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--settings", default=str(ROOT / "experiments" / "positions.toml"))
    parser.add_argument(
        "--output", default=str(ROOT / "output" / "compare_positions"), help="for the models"
    )
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
