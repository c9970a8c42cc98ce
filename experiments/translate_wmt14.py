"""Trains translation models with rotary and sinusoidal positions: table 1 of the paper, at any scale.

    python experiments/translate_wmt14.py --corpora en_de_multi30k        # all runs, then the report
    python experiments/translate_wmt14.py --corpora en_de_wmt14 --schemes rotary --seeds 0 --set steps=20000
    python experiments/translate_wmt14.py --corpora wmt14_full --paper    # the paper's sizes, on all visible GPUs
    python experiments/translate_wmt14.py --report

A corpus is a folder under `--data` with files train*, valid* and test*: tab-separated (`.tsv` or
`.tsv.xz`), with a header and the columns `en` and `de`. The models translate English into German.
With one seed both see the same batches; they differ only in their positions. BLEU is sacrebleu's,
with its signature, on the test file, by beam search with the average of the last weights. The
models are kept in `--output`:

    python -m roformer_tf translate output/translate/en_de_multi30k-rotary-0 "Two dogs run in the snow."
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import itertools
import time
from pathlib import Path

import experiment
import keras
import tensorflow as tf
from experiment import ROOT, Results, draw, markdown_table, mean_and_spread

from roformer_tf import (
    RoFormerSentencePieceTokenizer,
    RoFormerSeq2SeqBackbone,
    RoFormerSeq2SeqLM,
    RoFormerSeq2SeqLMPreprocessor,
)
from roformer_tf.models import SmoothedCrossentropy, translate
from roformer_tf.optimizers import InverseSquareRootDecay, LastWeights
from roformer_tf.samplers import BeamSearchSampler
from roformer_tf.text import token_batches, train_sentencepiece

SCHEMES = {"rotary": "RoFormer", "sinusoidal": "Transformer"}
PAPER_BLEU = {"rotary": 27.5, "sinusoidal": 27.3}  # table 1: WMT14 English to German, base size
PAPER = {
    "vocabulary_size": 37_000,
    "num_layers": 6,
    "num_heads": 8,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "dropout": 0.1,
    "dtype": "mixed_bfloat16",
    "max_tokens": 4096,  # of each replica; 8 replicas give the 25,000 and more of Vaswani et al.
    "max_length": 256,
    "steps": 100_000,
    "warmup_steps": 4000,
    "peak": 5e-4,
    "label_smoothing": 0.1,
    "checkpoints": 67,  # one in 1,500 steps
    "averaged": 5,
    "num_beams": 4,
    "length_penalty": 0.6,
}
# 12 minutes on one core, 0.32 s a step, 4 epochs of Multi30k
SETTINGS = {
    **PAPER,
    "vocabulary_size": 4000,
    "num_layers": 3,
    "num_heads": 4,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "dtype": "float32",
    "max_tokens": 1024,
    "max_length": 64,
    "steps": 2000,
    "warmup_steps": 400,
    "peak": 2e-3,  # small models tolerate larger rates
    "checkpoints": 20,
}


def read_corpus(folder):
    """Reads a corpus as a dict from part to `(sources, targets)`."""
    corpus = {}
    for part in ("train", "valid", "test"):
        files = sorted(experiment.existing(folder).glob(f"{part}*.tsv*"))
        if len(files) != 1:
            raise SystemExit(f"{folder} must have one file {part}*.tsv or .tsv.xz. It has {files}.")
        rows = experiment.read_table(files[0])
        corpus[part] = [row["en"] for row in rows], [row["de"] for row in rows]
    return corpus


def make_model(tokenizer, scheme, settings):
    """Makes a compiled model with random weights."""
    backbone = RoFormerSeq2SeqBackbone(
        position_scheme=scheme,
        **{
            key: settings[key]
            for key in (
                *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
                *("dropout", "dtype"),
            )
        },
    )
    length = settings["max_length"]
    preprocessor = RoFormerSeq2SeqLMPreprocessor(tokenizer, max(256, length), max(256, length))
    model = RoFormerSeq2SeqLM(backbone, preprocessor)
    schedule = InverseSquareRootDecay(settings["peak"], settings["warmup_steps"])
    model.compile(
        keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        SmoothedCrossentropy(settings["label_smoothing"]),
        sampler=BeamSearchSampler(settings["num_beams"], settings["length_penalty"]),
        weighted_metrics=None,
        jit_compile=False,
    )
    return model


def train(corpus, proto, scheme, settings, seed, folder):
    """Trains one model and saves it in `folder`. Returns its curves and BLEU."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    tokenizer = RoFormerSentencePieceTokenizer(proto)
    gpus = tf.config.list_logical_devices("GPU")
    strategy = tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model(tokenizer, scheme, settings)
    batches = {
        part: token_batches(
            corpus[part],
            tokenizer,
            settings["max_tokens"] * replicas,
            settings["max_length"],
            seed=seed if part == "train" else None,
            multiple_of=replicas,
        )
        for part in ("train", "valid")
    }
    last = LastWeights(folder / "last_weights", keep=settings["averaged"])
    width = settings["steps"] // settings["checkpoints"]
    start, cpu = time.time(), time.process_time()
    history = model.fit(
        batches["train"],
        epochs=settings["checkpoints"],
        steps_per_epoch=width,
        validation_data=batches["valid"],
        callbacks=[last],
        verbose=0,
    ).history
    seconds, cpu = time.time() - start, time.process_time() - cpu
    last.average()
    model.compile(loss=SmoothedCrossentropy(0.0), weighted_metrics=None, jit_compile=False)
    held_out_loss = model.evaluate(batches["valid"], verbose=0, return_dict=True)["loss"]
    model.save_to_preset(str(folder))

    # read back, on one device
    model = RoFormerSeq2SeqLM.from_preset(str(folder))
    model.compile(sampler=BeamSearchSampler(settings["num_beams"], settings["length_penalty"]))
    sources, references = corpus["test"]
    start = time.time()
    translations = translate(model, sources)
    bleu, signature = score(translations, references)
    experiment.write_text(
        folder / "test.translations.txt", "".join(f"{line}\n" for line in translations)
    )
    counts = [count_tokens(model, batch) for batch in itertools.islice(batches["train"], 50)]
    steps = [width * (i + 1) for i in range(settings["checkpoints"])]
    return {
        "training": {"step": steps, "loss": [round(x, 5) for x in history["loss"]]},
        "held_out": {"step": steps, "loss": [round(x, 5) for x in history["val_loss"]]},
        "held_out_loss": held_out_loss,
        "bleu": bleu,
        "signature": signature,
        "samples": list(zip(sources, references, translations))[:5],
        "weights": model.count_params(),
        "target_tokens_of_a_step": sum(counts) / len(counts),
        "training_seconds": round(seconds, 1),
        "training_cpu_seconds": round(cpu, 1),
        "translation_seconds": round(time.time() - start, 1),
    }


def count_tokens(model, batch):
    """Counts the target tokens of a batch, without padding."""
    return float(tf.reduce_sum(model.preprocessor(batch)[2]))


def score(translations, references):
    """Computes BLEU and its signature."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise SystemExit("BLEU needs sacrebleu: pip install 'roformer-tf[examples]'.") from error
    metric = BLEU()
    result = metric.corpus_score(translations, [references])
    return round(result.score, 3), str(metric.get_signature())


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = experiment.with_values(PAPER if args.paper else SETTINGS, args.set)
    results = Results(args.results)
    for name in args.corpora:
        corpus = read_corpus(Path(args.data) / name)
        texts = itertools.chain(*corpus["train"])
        proto = train_sentencepiece(texts, settings["vocabulary_size"])
        sizes = {f"{part}_pairs": len(pairs[0]) for part, pairs in corpus.items()}
        for seed, scheme in itertools.product(args.seeds, args.schemes):
            key = f"{name}-{scheme}-{seed}"
            record = results.run(
                key,
                {"corpus": name, "scheme": scheme, "seed": seed, **settings, **sizes},
                lambda corpus=corpus, proto=proto, scheme=scheme, seed=seed, key=key: train(
                    corpus, proto, scheme, settings, seed, Path(args.output) / key
                ),
            )
            print(f"{key}: BLEU {record['result']['bleu']:.2f}, {record['result']['signature']}")


def report(results):
    """Draws the curves and the tables of the finished runs."""
    corpora = results.grouped("corpus")
    parts = []
    for corpus, records in corpora.items():
        groups = {scheme: [] for scheme in SCHEMES}
        for record in records:
            groups[record["settings"]["scheme"]].append(record)
        parts += report_of_corpus(corpus, groups, results.picture(corpus))
    table = markdown_table(
        ("model", "BLEU of the paper, table 1: WMT14 English-German, base size"),
        [(SCHEMES[scheme], bleu) for scheme, bleu in PAPER_BLEU.items()],
    )
    results.write_report("Translation with rotary and with sinusoidal positions", *parts, table)


def report_of_corpus(corpus, groups, picture):
    """Makes the paragraphs and tables of one corpus."""

    def curves(kind):
        return {
            SCHEMES[scheme]: [(r["result"][kind]["step"], r["result"][kind]["loss"]) for r in runs]
            for scheme, runs in groups.items()
            if runs
        }

    axes = {"x": "step", "y": "loss, with label smoothing"}
    draw(
        picture,
        [
            {"title": "Training", "curves": curves("training"), **axes},
            {"title": "Held-out pairs", "curves": curves("held_out"), **axes},
        ],
    )
    baseline = {r["settings"]["seed"]: r["result"]["bleu"] for r in groups["sinusoidal"]}
    rows = []
    for scheme, runs in groups.items():
        against = [
            r["result"]["bleu"] - baseline[r["settings"]["seed"]]
            for r in runs
            if r["settings"]["seed"] in baseline
        ]
        rows.append(
            (
                f"{SCHEMES[scheme]} ({scheme})",
                mean_and_spread([r["result"]["bleu"] for r in runs], "{:.2f}"),
                "–" if scheme == "sinusoidal" else mean_and_spread(against, "{:+.2f}"),
                mean_and_spread([r["result"]["held_out_loss"] for r in runs]),
                mean_and_spread([r["result"]["training_cpu_seconds"] / 60 for r in runs], "{:.1f}"),
            )
        )
    first = next(runs[0] for runs in groups.values() if runs)
    s, result = first["settings"], first["result"]
    signatures = {r["result"]["signature"] for runs in groups.values() for r in runs}
    return [
        f"## {corpus}",
        f"{s['num_layers']} + {s['num_layers']} layers of {s['hidden_dim']}, {s['num_heads']} heads, {s['dtype']}, "
        f"{result['weights']:,} weights, a joint vocabulary of {s['vocabulary_size']:,}; {s['train_pairs']:,} pairs, "
        f"{s['steps']:,} steps of some {result['target_tokens_of_a_step']:,.0f} target tokens; Adam, learning rate "
        f"{s['peak']:g} after {s['warmup_steps']:,} steps; mean of the last {s['averaged']} of {s['checkpoints']} "
        f"checkpoints; beam {s['num_beams']}, length penalty {s['length_penalty']}; {s['test_pairs']:,} test pairs. "
        "Mean ± standard deviation (number of seeds).",
        markdown_table(
            ("model", "BLEU", "against sinusoidal, same seed", "held-out loss", "CPU minutes"),
            rows,
        ),
        f"`{'`, `'.join(sorted(signatures))}`",
        f"![curves]({picture.name})",
        markdown_table(("source", "reference", SCHEMES[s["scheme"]]), result["samples"]),
    ]


def main():
    parser = experiment.make_parser(__doc__, "translate_wmt14", seeds=(0, 1))
    parser.add_argument("--corpora", nargs="+", default=["en_de_multi30k"], metavar="FOLDER")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument(
        "--output", default=str(ROOT / "output" / "translate"), help="for the models"
    )
    parser.add_argument("--paper", action="store_true", help="the paper's sizes")
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
