"""`python -m benchmarks.attention_cost`: time and peak memory of an attention layer against the length of its input."""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks import records
from benchmarks.client import run_case

HEAD_DIM = 64
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
QUICK_LENGTHS = (64, 128, 256)
FIT_FROM = 2048  # shorter inputs are dominated by what does not grow with the length
ENVIRONMENT = {  # of the processes that measure
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_ENABLE_ONEDNN_OPTS": "1",  # the allocator that counts comes with oneDNN
}
PARTS = {"forward": "forward", "step": "forward and backward"}
MEASURES = {"seconds": ("time", "s", 1), "bytes": ("peak memory", "MB", 2**20)}
# name on the command line: label, color
ATTENTIONS = {
    "softmax": ("softmax, plain", "#1f2937"),
    "chunked": ("softmax, chunked", "#1f5fa8"),
    "elu": ("linear, elu + 1", "#2b8a3e"),
    "softmax_features": ("linear, softmax features", "#d9480f"),
    "favor": ("linear, FAVOR+", "#9c36b5"),
    "cosine": ("linear, cosine", "#b08900"),
}


def measure(case, limit=None):
    """Measures what a case takes, in a process of its own.

    Args:
        case: dictionary of `attention`, `length`, `part`, `num_heads`, `causal`, `repeats`.
        limit: seconds after which it is given up.

    Returns:
        Dictionary of `seconds`, the median of the repeats, and `bytes`, what the call adds to the memory in use at
        its peak as TensorFlow's allocator counts it; or of `skipped`, the reason why there are none.
    """
    if case["attention"] == "softmax":
        # measured: the scores of float32 once going forward, three times in a step
        copies = 1.5 if case["part"] == "forward" else 3.5
        needed = copies * 4 * case["num_heads"] * case["length"] ** 2
        if needed > 0.8 * _available_bytes():
            return {"skipped": "does not fit"}
    try:
        done = run_case("benchmarks.attention_cost", case, ENVIRONMENT, limit)
    except subprocess.TimeoutExpired:
        return {"skipped": f"more than {limit:g} s"}
    if done.returncode < 0 or "ResourceExhausted" in done.stderr:  # killed for its memory
        return {"skipped": "does not fit"}
    if done.returncode:
        raise RuntimeError(f"The measurement of {case} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def make_layer(attention, num_heads, causal):
    """Makes the attention layer, with rotary positions, and the mask layer for it."""
    from roformer_tf.layers import AttentionMask, RotaryPosition, SelfAttention

    masking = "causal" if causal else "bidirectional"
    if attention in ("softmax", "chunked"):
        layer = SelfAttention(num_heads, HEAD_DIM, position_scheme=RotaryPosition(HEAD_DIM))
        layer.chunked_above = 0 if attention == "chunked" else None
        return layer, AttentionMask(masking, dense=False)
    from roformer_tf.layers.feature_maps import make_feature_maps
    from roformer_tf.layers.linear_attention import LinearAttention

    (feature_map,) = make_feature_maps(attention, 1)
    scheme = RotaryPosition(feature_map.rotated_dim(HEAD_DIM))
    layer = LinearAttention(num_heads, HEAD_DIM, feature_map, causal=causal, position_scheme=scheme)
    return layer, AttentionMask()


def _measure_here(case):
    import numpy as np
    import tensorflow as tf

    length, width = case["length"], case["num_heads"] * HEAD_DIM
    layer, mask = make_layer(case["attention"], case["num_heads"], case["causal"])
    layer.build((1, length, width))
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, width)), tf.float32)
    ones = tf.ones((1, length), tf.int32)

    def forward(x):
        return layer(x, attention_bias=mask(ones), position=layer.position_scheme(ones))

    def step(x):
        weights = [weight.value for weight in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(forward(x)))
        return tape.gradient(loss, [x, *weights])

    function = tf.function({"forward": forward, "step": step}[case["part"]])

    def run():
        start = time.perf_counter()
        # the numbers are needed on the host, so that all is done when the clock stops
        [float(tf.reduce_sum(part)) for part in tf.nest.flatten(function(x))]
        return time.perf_counter() - start

    run()
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    seconds = [run() for _ in range(case["repeats"])]
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return {"seconds": statistics.median(seconds), "bytes": peak - before}


def _available_bytes():
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    return 1024 * found[0] if found else float("inf")


def exponent(lengths, values):
    """Fits the slope of a straight line in logarithmic scales: values ~ length^slope."""
    import numpy as np

    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def curves(record, part, measure):
    """Returns what was measured, as `{attention: (lengths, values)}`."""
    found = {}
    for result in record["results"]:
        if result["part"] == part and measure in result:
            lengths, values = found.setdefault(result["attention"], ([], []))
            lengths.append(result["length"])
            values.append(result[measure])
    return found


def table(record):
    """Returns lines of Markdown: a table for each part and measure, with the fitted exponents."""
    lengths = sorted({result["length"] for result in record["results"]})
    fit_from = min(FIT_FROM, lengths[-2]) if len(lengths) > 1 else FIT_FROM
    skipped = {
        (result["part"], result["attention"], result["length"]): result["skipped"]
        for result in record["results"]
        if "skipped" in result
    }
    lines = []
    for part, title in PARTS.items():
        for name, (what, unit, scale) in MEASURES.items():
            found = curves(record, part, name)
            lines += ["", f"## {title.capitalize()}: {what}, {unit}", ""]
            head = ["attention", *(f"{length:,}" for length in lengths)]
            lines.append(f"| {' | '.join(head)} | exponent from {fit_from:,} on |")
            lines.append("|" + "---|" * (len(head) + 1))
            for attention in (a for a in ATTENTIONS if a in record["attentions"]):
                points = dict(zip(*found.get(attention, ((), ()))))
                cells = [
                    f"{points[length] / scale:.3g}"
                    if length in points
                    else skipped.get((part, attention, length), "")
                    for length in lengths
                ]
                fitted = [length for length in points if length >= fit_from]
                slope = "–"
                if len(fitted) > 1:
                    slope = f"{exponent(fitted, [points[n] for n in fitted]):.2f}"
                lines.append(f"| {' | '.join([ATTENTIONS[attention][0], *cells, slope])} |")
    return lines


def draw(record, path):
    """Draws all measurements in logarithmic scales."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 7), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for row, (part, title) in zip(axes, PARTS.items(), strict=True):
            for axis, (name, (what, unit, scale)) in zip(row, MEASURES.items(), strict=True):
                for attention, (lengths, values) in curves(record, part, name).items():
                    label, color = ATTENTIONS[attention]
                    scaled = [value / scale for value in values]
                    axis.plot(lengths, scaled, "o-", color=color, label=label, markersize=3.5)
                axis.set_xscale("log", base=2)
                axis.set_yscale("log")
                axis.set_title(title)
                axis.set_ylabel(f"{what}, {unit}")
                axis.xaxis.set_major_formatter(lambda length, _: f"{length:,.0f}")
                axis.grid(alpha=0.3, linewidth=0.6)
                axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[1]:
            axis.set_xlabel("length")
        axes[0, 0].legend(frameon=False)
        figure.savefig(path, dpi=160, metadata={"Software": None})


def write(record, output):
    """Writes the results as JSON lines, and beside them the table and the figure."""
    about = (
        f"One layer of {record['num_heads']} heads of {HEAD_DIM} features, "
        f"{'causal' if record['causal'] else 'bidirectional'}, with rotary positions, a batch of one row, float32, "
        "TensorFlow. Each cell is a process of its own: the median of its runs after one to warm up, and what a run "
        "adds to the memory in use at its peak."
    )
    title = "Time and memory of one attention layer against the length"
    figure = f"![{output.stem}]({output.stem}.png)"
    records.report(output, record, title, about, [figure, *table(record)])
    draw(record, output.with_suffix(".png"))


def main(arguments=None):
    parser = records.make_parser("attention_cost", __doc__)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--lengths", type=int, nargs="+", help="lengths to measure")
    parser.add_argument(
        "--attentions", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS), metavar="NAME"
    )
    parser.add_argument("--heads", type=int, default=4, help="heads of 64 features (%(default)s)")
    parser.add_argument("--causal", action="store_true", help="causal attention, not bidirectional")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (%(default)s)")
    parser.add_argument("--limit", type=float, help="seconds after which a case is given up")
    given = parser.parse_args(arguments)
    if given.case is not None:
        print(json.dumps(_measure_here(given.case)))
        return
    output = records.output_of(given, f"attention_cost{'_causal' * given.causal}")
    record = {
        **records.made_by("benchmarks.attention_cost", arguments),
        "num_heads": given.heads,
        "causal": given.causal,
        "attentions": given.attentions,
        "results": [],
    }
    for length in given.lengths or (QUICK_LENGTHS if given.quick else LENGTHS):
        for attention in given.attentions:
            for part in PARTS:
                case = {"attention": attention, "length": length, "part": part}
                options = {
                    "num_heads": given.heads,
                    "causal": given.causal,
                    "repeats": given.repeats,
                }
                found = measure({**case, **options}, given.limit)
                record["results"].append({**case, **found})
                print(record["results"][-1], flush=True)
        # after each length: an error costs no more than what follows it
        records.write(output, record)
    write(record, output)


if __name__ == "__main__":
    main()
