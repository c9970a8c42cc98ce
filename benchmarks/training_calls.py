"""`python -m benchmarks.training_calls`: steps of `fit` and `train_on_batch` beside `Pretrainer`'s, and mixed lengths.

One process and one set of sizes; the calls take turns, so a ratio is the median over the turns. The masked LM predicts
the same positions of the same batch in all of them, and has `Pretrainer`'s optimizer but where Keras' stands. Mixed
lengths: `RoFormerTextClassifier.fit` with `group_by_length` on reviews of 20 to 784 characters, in real tokens a
second, beside texts that are all equally long.
"""

import time
from dataclasses import asdict
from statistics import median

import numpy as np

from benchmarks import corpus, records
from benchmarks.models import LEARNING_RATE
from benchmarks.sizes import BASE, MEDIUM, QUICK, Sizes
from benchmarks.turns import take_turns, timed
from benchmarks.worker import libraries

SHAPES = ((8, 128), (4, 512), (1, 1536))
QUICK_SHAPES = ((2, 32),)
STEPS = 3  # in a call of `fit`
INPUTS = "token_ids", "segment_ids", "padding_mask", "mask_positions"
CALLS = {
    "pretrainer": "`Pretrainer.train_on_batch`",
    "train_on_batch": "`RoFormerMaskedLM.train_on_batch`",
    "fit": "`RoFormerMaskedLM.fit`",
    "keras_adamw": "the same, with `keras.optimizers.AdamW`",
    "equal": "`RoFormerTextClassifier.fit`, equal lengths",
    "mixed": "the same, mixed lengths, `group_by_length=True`",
}


def make_clock():
    """Makes a callback whose `seconds` are those from the first step's begin to the last one's end.

    What comes after is not counted: TensorFlow takes up to a second, idle, to close the iterator of a dataset.
    """
    import keras

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.start = None

        def on_train_batch_begin(self, batch, logs=None):
            self.start = self.start or time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds = time.perf_counter() - self.start

    return Clock()


def steps(sizes, shape, repeats, seed):
    """Times the calls at one shape; returns a dictionary for each."""
    import keras
    import tensorflow as tf

    from benchmarks.pretraining_ours import make_pretrainer, ready_batch
    from roformer_tf.pretraining.models import make_optimizer
    from roformer_tf.pretraining.settings import OptimizerSettings

    batch = ready_batch(seed, sizes, *shape)
    pretrainer = make_pretrainer(sizes, seed)
    task = pretrainer.task
    task.compile(make_optimizer(OptimizerSettings(name="adamw"), LEARNING_RATE))
    other = type(task).from_config(task.get_config())
    other.compile(keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01))
    x = {name: batch[name] for name in INPUTS}
    y, weights = batch["labels"], batch["label_weights"]
    data = tf.data.Dataset.from_tensors((x, y, weights)).repeat()
    clock = make_clock()

    def fit(task):
        task.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=[clock])
        return clock.seconds / STEPS

    calls = {
        "pretrainer": timed(lambda: pretrainer.train_on_batch(batch)),
        "train_on_batch": timed(lambda: task.train_on_batch(x, y, weights)),
        "fit": lambda: fit(task),
        "keras_adamw": lambda: fit(other),
    }
    row = "{} × {}".format(*shape)
    return rows(row, take_turns(calls, repeats), {}, "pretrainer")


def mixed(sizes, count, repeats, seed):
    """Times `fit` on texts of mixed and of equal lengths; returns a dictionary for each."""
    import keras

    import roformer_tf

    tokenizer = roformer_tf.RoFormerTokenizer(corpus.vocabulary())
    backbone = roformer_tf.RoFormerBackbone(**sizes.backbone_arguments())
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    classifier = roformer_tf.RoFormerTextClassifier(backbone, 2, preprocessor)
    classifier.compile(
        keras.optimizers.AdamW(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    texts = corpus.lines(count, seed, 20, 784)
    lengths = preprocessor.count_tokens(texts).numpy()
    near = np.argsort(np.abs(lengths - lengths.mean()), kind="stable")[:32]
    same = [texts[i] for i in np.resize(near, count)]
    labels = np.arange(count) % 2
    clock = make_clock()

    def fit(texts, group_by_length):
        options = {"batch_size": 16, "verbose": 0, "group_by_length": group_by_length}
        classifier.fit(texts, labels, callbacks=[clock], **options)
        return clock.seconds

    calls = {"equal": lambda: fit(same, False), "mixed": lambda: fit(texts, True)}
    tokens = {"equal": preprocessor.count_tokens(same).numpy().sum(), "mixed": lengths.sum()}
    return rows(f"{count} reviews", take_turns(calls, repeats), tokens, "equal")


def rows(row, runs, tokens, base):
    """Returns a dictionary for each call; `ratio` is its speed, in steps or tokens, divided by that of `base`."""
    speed = {
        name: [int(tokens.get(name, 1)) / s for s in seconds] for name, seconds in runs.items()
    }
    return [
        {
            "row": row,
            "call": name,
            "seconds": median(seconds),
            "tokens_per_second": median(speed[name]) if name in tokens else None,
            "ratio": median(a / b for a, b in zip(speed[name], speed[base], strict=True)),
            "runs": seconds,
        }
        for name, seconds in runs.items()
    ]


def table(record):
    """Returns lines of Markdown."""
    lines = ["| | call | median | speed, of the first |", "|---|---|---|---|"]
    for r in record["results"]:
        tokens = r["tokens_per_second"]
        speed = f"{r['seconds']:.2f} s" if tokens is None else f"{tokens:,.0f} tokens/s"
        lines.append(f"| {r['row']} | {CALLS[r['call']]} | {speed} | {r['ratio']:.2f} × |")
    return lines


def main(arguments=None):
    parser = records.make_parser("training_calls", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed turns (%(default)s)")
    parser.add_argument("--count", type=int, default=320, help="reviews (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    output = records.output_of(given, "training_calls")
    libraries("ours")
    sizes, shapes = (QUICK, QUICK_SHAPES) if given.quick else (BASE, SHAPES)
    record = {
        **records.made_by("benchmarks.training_calls", arguments),
        "sizes": asdict(sizes),
        "results": [],
    }
    for shape in shapes:
        record["results"] += steps(sizes, shape, given.repeats, given.seed)
        print("\n".join(table(record)[-3:]), flush=True)
    vocabulary = len(corpus.vocabulary())
    small = Sizes(**{**asdict(QUICK if given.quick else MEDIUM), "vocabulary": vocabulary})
    record["results"] += mixed(small, given.count, given.repeats, given.seed)
    about = (
        f"The masked LM has {sizes.layers} layers of width {sizes.width}, the classifier {small.layers} of width "
        f"{small.width}; float32, random weights. Medians; the calls take turns in one process."
    )
    records.report(output, record, "Training calls", about, table(record))


if __name__ == "__main__":
    main()
