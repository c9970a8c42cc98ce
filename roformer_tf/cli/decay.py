"""Prints and draws the relative upper bound on the product of a query and a key by their distance:
the mean of |S_j| in section 3.4.3 of the paper. The defaults are those of figure 2. With
--scaling, adds a curve for the frequencies of a length scaling rule, without YaRN's factor on
queries and keys.
"""

import csv
import io
import json
from pathlib import Path

from roformer_tf.files import check_not_a_file, replace_file, write_picture

HELP = "draw how RoPE's bound on a score falls with distance (figure 2 of the paper)"
SUFFIXES = (".png", ".svg")
ROWS = 16  # in the printed table


def add_arguments(parser):
    parser.add_argument("--head-dim", type=int, default=128, help="size of an attention head (128)")
    parser.add_argument(
        "--base", type=float, default=10000.0, help="base of the frequencies (10000)"
    )
    parser.add_argument(
        "--distances", type=int, default=256, metavar="N", help="largest distance (256)"
    )
    parser.add_argument(
        "--scaling",
        action="append",
        default=[],
        metavar="JSON",
        help="length scaling rule, as `rope_scaling` takes it, such as "
        '\'{"rope_type": "linear", "factor": 4}\'; can be repeated',
    )
    parser.add_argument(
        "--length", type=int, help="current length, for dynamic and longrope; default: N + 1"
    )
    parser.add_argument("--output", help="picture to write: .png or .svg")
    parser.add_argument("--csv", help="CSV file to write the numbers of all distances to")


def run(args):
    import numpy as np

    if args.output and Path(args.output).suffix not in SUFFIXES:
        raise ValueError(f"--output must end in {' or '.join(SUFFIXES)}. Received: {args.output}")
    if args.distances < 1:
        raise ValueError(f"--distances must be positive. Received: {args.distances}")
    distances = np.arange(args.distances + 1)
    curves = _curves(args, distances)
    for path, write in ((args.output, _draw), (args.csv, _write_csv)):
        if path:
            path = Path(path)
            write(curves, distances, path)
            print(path)
    _print(curves, distances)


def _curves(args, distances):
    """Returns the bound at all distances, by the name of the curve."""
    from keras import ops

    from roformer_tf import rotary
    from roformer_tf.rope_scaling import make_rope_scaling

    theta = rotary.frequencies(args.head_dim, args.base)
    length = args.distances + 1 if args.length is None else args.length
    curves = {"RoPE": rotary.decay_bound(distances, theta)}
    for text in args.scaling:
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"--scaling must be a dictionary in JSON. Received: {text} ({error})"
            ) from None
        if config is None:
            raise ValueError(f"--scaling must be a dictionary in JSON. Received: {text}")
        rule = make_rope_scaling(config)
        name = _name(config, length if rule.needs_length else None)
        ratios = ops.convert_to_numpy(rule.ratios(args.head_dim, args.base, length))
        curves[name] = rotary.decay_bound(distances, theta * ratios)
    return curves


def _name(config, length):
    options = {key: value for key, value in config.items() if value is not None}
    older_name = options.pop("type", None)
    kind = options.pop("rope_type", older_name)
    trained = options.pop("original_max_position_embeddings", None)
    if trained is not None:
        options["trained"] = trained
    if length is not None:
        options["length"] = length
    return " ".join([kind, *(f"{key}={value}" for key, value in options.items())])


def _draw(curves, distances, path):
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib: pip install 'roformer-tf[plots]', or pip install matplotlib."
        ) from error
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "decay"}):
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axis = figure.subplots()
        for name, values in curves.items():
            axis.plot(distances, values, label=name, linewidth=1.2)
        axis.set(xlabel="relative distance", ylabel="relative upper bound", xlim=(0, distances[-1]))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3, linewidth=0.6)
        if len(curves) > 1:
            axis.legend(frameon=False)
        write_picture(figure, path, dpi=120)


def _write_csv(curves, distances, path):
    check_not_a_file(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as binary, io.TextIOWrapper(binary, "utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["distance", *curves])
        for distance, *values in zip(distances, *curves.values()):
            writer.writerow([distance, *(f"{value:.9g}" for value in values)])


def _print(curves, distances):
    widths = [max(len(name), 8) for name in curves]
    print("distance  " + "  ".join(f"{name:>{width}}" for name, width in zip(curves, widths)))
    for index in range(0, len(distances), max(1, len(distances) // ROWS)):
        values = (f"{values[index]:{width}.3f}" for values, width in zip(curves.values(), widths))
        print(f"{distances[index]:8d}  " + "  ".join(values))
