"""`python -m benchmarks.position_cost`: times an attention layer with each position scheme."""

import os
import statistics
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from benchmarks import records
from benchmarks.turns import take_turns, timed

BASE = {"batch_size": 2, "length": 512, "num_heads": 12, "head_dim": 64}
QUICK = {"batch_size": 1, "length": 8, "num_heads": 2, "head_dim": 4}


def make_step(name, batch_size, length, num_heads, head_dim):
    """Makes a function that computes a forward and a backward pass of the layer, and waits for it."""
    import numpy as np
    import tensorflow as tf

    from roformer_tf.layers import SelfAttention
    from roformer_tf.layers.position_schemes import make_position_schemes

    width = num_heads * head_dim
    sizes = SimpleNamespace(
        head_dim=head_dim,
        num_heads=num_heads,
        hidden_dim=width,
        max_sequence_length=length,
        max_wavelength=10000.0,
        masking="bidirectional",
        initializer="glorot_uniform",
    )
    (scheme,) = make_position_schemes(name, 1, sizes)
    layer = SelfAttention(num_heads, head_dim, position_scheme=scheme)
    layer.chunked_above = None
    layer.build((batch_size, length, width))
    x = np.random.default_rng(0).normal(size=(batch_size, length, width))
    x, ids = tf.constant(x, tf.float32), tf.zeros((batch_size, length), tf.int32)

    @tf.function
    def gradients():
        weights = [weight.value for weight in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, position=scheme(ids))))
        return tape.gradient(loss, [x, *weights])

    return lambda: [part.numpy() for part in gradients()]


def measure(sizes, rounds):
    """Measures the seconds of each scheme in each round; in a round all schemes take turns."""
    from roformer_tf.layers.position_schemes import POSITION_SCHEMES

    # schemes that are added to the embeddings cost attention nothing
    names = [name for name, cls in POSITION_SCHEMES.items() if not cls.added_to_input]
    return take_turns({name: timed(make_step(name, **sizes)) for name in names}, rounds)


def table(record):
    """Returns lines of Markdown."""
    medians = {r["position_scheme"]: statistics.median(r["seconds"]) for r in record["results"]}
    lines = ['| `position_scheme` | ms | times that of `"none"` |', "|---|---|---|"]
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        lines.append(f'| `"{name}"` | {1000 * median:.0f} | {median / medians["none"]:.2f} |')
    return lines


def write(record, output):
    """Writes the results as JSON lines, and the table beside them."""
    sizes = record["sizes"]
    about = (
        f"One layer, forward and backward, {sizes['batch_size']} × {sizes['length']} tokens, {sizes['num_heads']} "
        f"heads of {sizes['head_dim']}, float32, one thread: medians of {record['rounds']} rounds, in each of "
        "which all schemes take turns."
    )
    title = "Time of an attention layer with each position scheme"
    records.report(output, record, title, about, table(record))


def main(arguments=None):
    parser = records.make_parser("position_cost", __doc__)
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    given = parser.parse_args(arguments)

    import tensorflow as tf

    if arguments is None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    sizes = QUICK if given.quick else BASE
    record = {
        **records.made_by("benchmarks.position_cost", arguments),
        "sizes": sizes,
        "rounds": given.rounds,
        "results": [
            {"position_scheme": name, "seconds": seconds}
            for name, seconds in measure(sizes, given.rounds).items()
        ],
    }
    output = records.output_of(given, "position_cost")
    write(record, output)


if __name__ == "__main__":
    main()
