"""Trains a byte-level causal Performer with and without RoPE: figure 3 (right) of the paper, scaled down.

    python experiments/char_performer.py                  # all runs, then the report
    python experiments/char_performer.py --models favor-rotary favor-learned --seeds 0 1 10
    python experiments/char_performer.py --report

The text is the beginning of enwik8, as raw bytes. All models see the same windows, which depend on
the seed and the step only. "Without RoPE" means learned absolute positions, as in
performer-pytorch, the library behind the paper's curves. That library rotates queries and keys
before the feature map, while equation 19 rotates the features in the numerator: here they are two
models. Softmax attention is the reference.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import lzma
import math
from pathlib import Path

import experiment
import keras
import numpy as np
import tensorflow as tf
from experiment import Results, draw, markdown_table, mean_and_spread

from roformer_tf import RoFormerBackbone, RoFormerCausalLM
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay

# label, attention, its options, position scheme
MODELS = {
    "favor-rotary": ("Performer with RoPE, eq. 19", "favor", {}, "rotary"),
    "favor-learned": ("Performer without RoPE", "favor", {}, "learned"),
    "favor-rotary-inputs": (
        "Performer, RoPE before the feature map",
        "favor",
        {"rotate_inputs": True},
        "rotary",
    ),
    "softmax-rotary": ("softmax with RoPE", "softmax", {}, "rotary"),
    "softmax-learned": ("softmax without RoPE", "softmax", {}, "learned"),
}
SETTINGS = {
    "num_layers": 4,  # 12 in the paper
    "num_heads": 4,  # 12
    "hidden_dim": 128,  # 768
    # few tokens a step and many steps: with 900 steps of 8 x 512 the loss stays at that of pairs of bytes
    "length": 256,  # 1024
    "batch_size": 4,  # 128
    "steps": 2400,
    "learning_rate": 2e-3,  # 1e-4
    "redraw_every": None,  # 1000, of 100,000; each new draw costs hundreds of steps here
    "points": 48,  # of the training curve, means over the steps between
    "looks": 8,  # at the held-out text; a divisor of `points`
    "look_windows": 96,
    "dtype": "float32",
}


def read_bytes(path):
    """Reads the bytes of a compressed file."""
    with lzma.open(experiment.existing(path)) as file:
        return np.frombuffer(file.read(), np.uint8)


def make_inputs(token_ids):
    """Makes the inputs of a model for sequences without padding."""
    token_ids = tf.cast(token_ids, tf.int32)
    return {
        "token_ids": token_ids,
        "segment_ids": tf.zeros_like(token_ids),
        "padding_mask": tf.ones_like(token_ids),
    }


def training_data(text, settings, seed):
    """Makes an endless dataset of batches of random windows; the labels are the bytes that follow."""
    text, length = tf.constant(text), settings["length"]

    def batch(step):
        starts = tf.random.stateless_uniform(
            [settings["batch_size"], 1], [seed, step], 0, len(text) - length, tf.int64
        )
        window = tf.gather(text, starts + tf.range(length + 1, dtype=tf.int64))
        return make_inputs(window[:, :-1]), tf.cast(window[:, 1:], tf.int32)

    return tf.data.Dataset.range(tf.int64.max).map(batch).prefetch(2)


def held_out_data(text, settings, windows=None):
    """Makes a dataset of consecutive windows. Every byte but the first is predicted once."""
    length = settings["length"]
    count = min((len(text) - 1) // length, windows or len(text))
    inputs = text[: count * length].reshape(count, length)
    labels = text[1 : count * length + 1].reshape(count, length).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((make_inputs(inputs), labels))
    return data.batch(settings["batch_size"])


def make_model(name, settings, seed):
    """Makes a compiled causal language model over 256 bytes."""
    _, attention, options, scheme = MODELS[name]
    arguments = {}
    if attention != "softmax":
        options = {"seed": seed, "redraw_every": settings["redraw_every"], **options}
        arguments = {"attention": attention, "attention_options": options}
    backbone = RoFormerBackbone(
        vocabulary_size=256,
        num_layers=settings["num_layers"],
        num_heads=settings["num_heads"],
        hidden_dim=settings["hidden_dim"],
        intermediate_dim=4 * settings["hidden_dim"],
        num_segments=0,
        dropout=0.0,
        attention_dropout=0.0,
        position_scheme=scheme,
        max_sequence_length=settings["length"],
        masking="causal",
        dtype=settings["dtype"],
        **arguments,
    )
    model = RoFormerCausalLM(backbone)
    schedule = LinearWarmupDecay(settings["learning_rate"], settings["steps"], 0.1)
    optimizer = LayerwiseAdamW(
        schedule, num_layers=settings["num_layers"], layer_decay=1.0, global_clipnorm=1.0
    )
    model.compile(optimizer=optimizer, weighted_metrics=None, jit_compile=False)
    return model


def train(name, texts, settings, seed):
    """Trains one model and returns its curves, in bits per byte."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = make_model(name, settings, seed)
    points = settings["points"]
    width = settings["steps"] // points
    history = model.fit(
        training_data(texts["train"], settings, seed),
        epochs=points,
        steps_per_epoch=width,
        validation_data=held_out_data(texts["valid"], settings, settings["look_windows"]),
        validation_freq=points // settings["looks"],
        verbose=0,
    ).history
    bits = {key: [round(x / math.log(2), 5) for x in history[key]] for key in ("loss", "val_loss")}
    final = model.evaluate(held_out_data(texts["valid"], settings), verbose=0, return_dict=True)
    last = [width * (i + 1) for i in range(points)]
    return {
        "training": {"step": last, "bits": bits["loss"]},
        "held_out": {"step": last[points // settings["looks"] - 1 :: points // settings["looks"]]}
        | {"bits": bits["val_loss"]},
        "final_bits": final["loss"] / math.log(2),
        "weights": model.count_params(),
    }


def run(args):
    """Computes the runs that are not in the results yet."""
    settings = experiment.with_values(SETTINGS, args.set)
    folder = Path(args.data) / "enwik8_prefix"
    texts = {part: read_bytes(folder / f"{part}.bin.xz") for part in ("train", "valid")}
    sizes = {f"{part}_bytes": len(text) for part, text in texts.items()}
    results = Results(args.results)
    for seed in args.seeds:
        for name in args.models:
            results.run(
                f"{name}-{seed}",
                {"model": name, "seed": seed, **settings, **sizes},
                lambda name=name, seed=seed: train(name, texts, settings, seed),
            )


def report(results):
    """Draws the curves and the table of the finished runs."""
    groups = results.grouped("model")
    groups = {name: groups[name] for name in MODELS if name in groups}

    def curves(kind):
        return {
            MODELS[name][0]: [(r["result"][kind]["step"], r["result"][kind]["bits"]) for r in runs]
            for name, runs in groups.items()
        }

    axes = {"x": "step", "y": "bits per byte", "top": 6}
    draw(
        results.picture(),
        [
            {"title": "Training", "curves": curves("training"), **axes},
            {"title": "Held-out text", "curves": curves("held_out"), **axes},
        ],
    )
    rows = [
        (
            MODELS[name][0],
            mean_and_spread([r["result"]["final_bits"] for r in runs]),
            mean_and_spread([r["result"]["training"]["bits"][-1] for r in runs]),
            f"{runs[0]['result']['weights']:,}",
            mean_and_spread([r["seconds"] / 60 for r in runs], "{:.1f}"),
        )
        for name, runs in groups.items()
    ]
    s = next(iter(groups.values()))[0]["settings"]
    drawn = f"every {s['redraw_every']} steps" if s["redraw_every"] else "once"
    results.write_report(
        "Byte-level Performer with and without RoPE",
        f"{s['num_layers']} layers of {s['hidden_dim']}, {s['num_heads']} heads, {s['dtype']}, causal; {s['steps']:,} "
        f"steps of {s['batch_size']} windows of {s['length']} bytes out of {s['train_bytes']:,}, learning rate "
        f"{s['learning_rate']:g}, random features drawn {drawn}. Held-out: "
        f"{s['valid_bytes']:,} bytes that follow the training text, in separate windows of {s['length']}. Bits "
        "per byte: mean ± standard deviation (number of seeds).",
        markdown_table(
            ("model", "held-out bits", "training bits, last steps", "weights", "minutes"), rows
        ),
        f"![curves]({results.picture().name})",
        "Lines are means over the seeds; bands span the lowest to the highest.",
    )


def main():
    # block i draws its features from seed + i: 0 and 1 share three of four matrices, 10 has its own
    parser = experiment.make_parser(__doc__, "char_performer", seeds=(0, 1, 10))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    experiment.add_settings(parser, SETTINGS)
    experiment.main(parser, run, report)


if __name__ == "__main__":
    main()
