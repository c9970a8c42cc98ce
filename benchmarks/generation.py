"""`python -m benchmarks.generation`: tokens a second of `generate`, beside Hugging Face and the original's decoder.

Each library has a process of its own; they take turns, so that a drift of the machine hits all alike. A case is a batch
of prompts of one length. It is run for 1, for half and for all of the new tokens: the first is what the prompt takes,
and the differences are what a token takes early and late in the text.
"""

import contextlib
import statistics
from dataclasses import asdict

from benchmarks import records
from benchmarks.client import Client
from benchmarks.sizes import BASE, QUICK

WORKER = "benchmarks.generation_worker"
LABELS = {
    "ours": "ours",
    "hugging_face": "Hugging Face (PyTorch, cache)",
    "bert4keras": "bert4keras",
}
CASES = ((1, 32), (1, 512), (8, 32), (8, 512))  # (batch, prompt)
QUICK_CASES = ((1, 8), (2, 16))
# it makes one text after the other and reads all of it for each token: a few tokens of one text say how fast
FEW = {"bert4keras": 8}


def lengths(side, new_tokens):
    """Returns the numbers of new tokens that a side is measured at: one, half of all, all."""
    new_tokens = min(new_tokens, FEW.get(side, new_tokens))
    return [1, max(2, new_tokens // 2), new_tokens]


def measure(sides, cases, new_tokens, sizes, repeats, seed):
    """Yields the medians of each case and side.

    A dictionary of `side`, `batch`, `prompt`, `new_tokens`, `seconds` (of one, half and all of the new tokens),
    `peak_mb`; and what `rates` makes of them.
    """
    with contextlib.ExitStack() as stack:
        workers = {side: stack.enter_context(Client(WORKER)) for side in sides}
        for side, worker in workers.items():
            worker("build", implementation=side, sizes=asdict(sizes), seed=seed)
        for batch, prompt in cases:
            runs = {side: [[] for _ in range(3)] for side in sides}
            peaks = dict.fromkeys(sides, 0.0)
            for repeat in range(repeats + 1):  # the first to warm up
                for side, worker in workers.items():
                    rows = 1 if side in FEW else batch
                    for number, count in enumerate(lengths(side, new_tokens)):
                        done = worker("run", batch=rows, prompt=prompt, new_tokens=count)
                        if repeat:
                            runs[side][number].append(done["seconds"])
                            peaks[side] = max(peaks[side], done["peak_mb"])
                print(f"batch {batch}, prompt {prompt}: turn {repeat} of {repeats}", flush=True)
            for side in sides:
                result = {
                    "side": side,
                    "batch": batch,
                    "prompt": prompt,
                    "new_tokens": lengths(side, new_tokens),
                    "seconds": [statistics.median(x) for x in runs[side]],
                    "runs": runs[side],
                    "peak_mb": peaks[side],
                }
                yield {**result, **rates(result, new_tokens)}


def rates(result, new_tokens):
    """Returns seconds of the prompt and first token, milliseconds of early and late tokens, tokens a second of all."""
    (one, half, whole), (t_one, t_half, t_whole) = result["new_tokens"], result["seconds"]
    texts = result["batch"] if result["side"] in FEW else 1  # one after the other
    late = (t_whole - t_half) / max(1, whole - half)
    total = texts * (t_whole + late * (new_tokens - whole))
    return {
        "prompt_s": texts * t_one,
        "early_ms": 1e3 * texts * (t_half - t_one) / (half - one),
        "late_ms": 1e3 * texts * late,
        "tokens_per_s": result["batch"] * new_tokens / total,
    }


def table(record):
    """Returns lines of Markdown."""
    new_tokens = record["new_tokens"]
    head = ["batch", "prompt", "", "tokens/s", "ours is", "prompt and first token, s"]
    head += ["ms a token, early", "late", "peak, MB"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    ours = {
        (r["batch"], r["prompt"]): r["tokens_per_s"]
        for r in record["results"]
        if r["side"] == "ours"
    }
    for r in record["results"]:
        case = r["batch"], r["prompt"]
        ratio = ""
        if r["side"] != "ours" and case in ours:
            ratio = f"{ours[case] / r['tokens_per_s']:.1f} ×"
        cells = [*case, LABELS[r["side"]], f"{r['tokens_per_s']:.3g}", ratio]
        cells += [f"{r['prompt_s']:.3g}", f"{r['early_ms']:.3g}", f"{r['late_ms']:.3g}"]
        lines.append(f"| {' | '.join(map(str, [*cells, round(r['peak_mb'])]))} |")
    few = [LABELS[side] for side in FEW if side in {r["side"] for r in record["results"]}]
    lines += ["", f"Tokens a second are those of {new_tokens} new tokens a text, prompt included."]
    if few:
        count = min(max(FEW.values()), new_tokens)
        lines.append(
            f"{' and '.join(few)} takes one text at a time and reads all of it for each token: measured are one text "
            f"and {count} new tokens; the rest is counted at the rate of the last of them."
        )
    return lines


def write(record, output):
    """Writes the results as JSON lines, and the table beside them."""
    sizes = record["sizes"]
    about = (
        f"Greedy search with {sizes['layers']} layers of width {sizes['width']}, vocabulary {sizes['vocabulary']:,}, "
        f"float32, random weights. Medians of {record['repeats']} runs after one to warm up; the libraries "
        "take turns, a process each."
    )
    records.report(output, record, "Generation", about, table(record))


def main(arguments=None):
    parser = records.make_parser("generation", __doc__)
    parser.add_argument("--sides", nargs="+", choices=LABELS, default=list(LABELS), metavar="NAME")
    parser.add_argument("--new-tokens", type=int, help="tokens of each text (128)")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    output = records.output_of(given, "generation")
    sizes = QUICK if given.quick else BASE
    record = {
        **records.made_by("benchmarks.generation", arguments),
        "sizes": asdict(sizes),
        "new_tokens": given.new_tokens or (6 if given.quick else 128),
        "repeats": given.repeats,
        "seed": given.seed,
        "results": [],
    }
    cases = QUICK_CASES if given.quick else CASES
    for result in measure(
        given.sides, cases, record["new_tokens"], sizes, given.repeats, given.seed
    ):
        record["results"].append(result)
        records.write(output, record)  # an error costs no more than what follows it
    write(record, output)


if __name__ == "__main__":
    main()
