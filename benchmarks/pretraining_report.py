"""Makes the tables of README.md from the kept results of pretraining."""

from statistics import median

from benchmarks.pretraining_measure import PARTS

TITLES = {
    "ours": "roformer_tf, float32, adamw",
    "ours_bfloat16": "roformer_tf, mixed_bfloat16, adamw",
    "ours_original_adamw": "roformer_tf, float32, original_adamw",
    "ours_packed": 'roformer_tf, sequences packed (`"block_diagonal"`)',
    "ours_bucketed": 'roformer_tf, one chunk a sequence, bucketing (`"none"`)',
    "original": "original's loop (bert4keras on tf-keras)",
}


def tables(record):
    """Returns a dict from marker to lines of Markdown, for the parts that the record has."""
    results, made = record["results"], {}
    if results.get("projection", {}).get("cases"):
        made["projection"] = _projection(results["projection"])
    if results.get("pretraining"):
        made["pretraining"] = _pretraining(results["pretraining"])
    if results.get("end_to_end"):
        made["end_to_end"] = _end_to_end(results["end_to_end"])
    if any(results.get(part) for part in PARTS):
        made["pretraining_aims"] = _aims(results)
    return made


def faster(case):
    """Returns how many times as fast as the original it is: the median of the ratios within each round."""
    return median(b / a for a, b in zip(case["seconds"], case["beside"], strict=True))


def speed(case):
    """Returns real tokens per second over all runs.

    The processor time that the input took while others had their turn is added in full, although there are two cores.
    """
    return sum(case["tokens"]) / (sum(case["seconds"]) + sum(case["cpu_seconds_while_waiting"]))


def _projection(results):
    masked = results["cases"]["masked"]
    d = results["difference"]
    lines = [
        f"{_model(results['sizes'])}, batch {results['batch']} × {results['length']}.",
        "",
        "| projection | step, median | of the full one's | step, fastest | memory | of the full one's |",
        "|---|---|---|---|---|---|",
    ]
    for name, title in (("masked", "masked positions only"), ("full", "all positions")):
        case, full = results["cases"][name], results["cases"]["full"]
        ratio = median(a / b for a, b in zip(case["seconds"], full["seconds"], strict=True))
        lines.append(
            f"| {title} | {duration(median(case['seconds']))} | {ratio:.2f} | {duration(min(case['seconds']))} "
            f"| {case['peak_mb'] / 1024:.2f} GB | {case['peak_mb'] / full['peak_mb']:.2f} |"
        )
    saved = (results["cases"]["full"]["peak_mb"] - masked["peak_mb"]) / 1024
    return [
        *lines,
        "",
        f"Memory saved: {saved:.2f} GB. Greatest relative difference of the two: loss {d['loss']:.1e}, gradients of "
        f"the {d['variables']} weights {d['gradients']:.1e} (`{d['worst']}`; an element's difference by the greatest "
        "element). Float32 noise, which is the masked-only projection against itself with the rows in reverse order: "
        f"loss {d['noise_loss']:.1e}, gradients {d['noise_gradients']:.1e}.",
    ]


def _pretraining(results):
    lines = [
        "| batch × length | | step, median | tokens/s | times the original's | by the fastest runs | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, made in results.items():
        batch, length = map(int, shape.split(" x "))
        for name in [name for name in TITLES if name in made["cases"]]:
            case = made["cases"][name]
            seconds = median(case["seconds"])
            lines.append(
                f"| {batch} × {length}{'' if made['alternating'] else ', one after the other'} | {TITLES[name]} "
                f"| {duration(seconds)} | {batch * length / seconds:,.0f} | {faster(case):.2f} "
                f"| {min(case['beside']) / min(case['seconds']):.2f} | {max(case['peak_mb']) / 1024:.2f} GB |"
            )
    sizes = next(iter(results.values()))["sizes"]
    return [f"{_model(sizes)}.", "", *lines]


def _end_to_end(results):
    if "skipped" in results:
        return [f"Skipped: {results['skipped']}."]
    cases = results["cases"]
    lines = [
        f"{results['documents']:,} documents, {results['characters']:,} characters; {_model(results['sizes'])}; "
        f"batches of {results['batch']} × {results['length']}.",
        "",
        "| | real tokens/s | times the original's | padding | step, mean | steps | input alone, tokens/s | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [name for name in TITLES if name in cases]:
        case = cases[name]
        ratio = f"{speed(case) / speed(cases['original']):.2f}" if "original" in cases else "–"
        padding = 1 - sum(case["tokens"]) / sum(case["places"])
        steps = sum(case["steps"])
        step = duration(sum(case["seconds"]) / steps)
        alone = case["input"]["tokens"] / case["input"]["seconds"]
        lines.append(
            f"| {TITLES[name]} | {speed(case):,.0f} | {ratio} | {padding:.1%} | {step} "
            f"| {steps} | {alone:,.0f} | {max(case['peak_mb']) / 1024:.2f} GB |"
        )
    return lines


def _aims(results):
    """Compares every aim with what was measured."""
    rows = []
    for name, aim in (("ours", 1.33), ("ours_bfloat16", 2.0)):
        measured = {
            shape: faster(made["cases"][name])
            for shape, made in results.get("pretraining", {}).items()
            if name in made["cases"]
        }
        if measured:
            values = ", ".join(f"{r:.2f} ({s.replace('x', '×')})" for s, r in measured.items())
            met = all(ratio >= aim for ratio in measured.values())
            title = f"training tokens/s: {TITLES[name]} / original"
            rows.append((title, f"≥ {aim}", values, "yes" if met else "no"))
    cases = results.get("end_to_end", {}).get("cases", {})
    for name in ("ours_packed", "ours_bucketed"):
        if name in cases and "original" in cases:
            ratio = speed(cases[name]) / speed(cases["original"])
            title = f"real tokens/s, documents: {TITLES[name]} / original"
            rows.append((title, "≥ 2", f"{ratio:.2f}", "yes" if ratio >= 2 else "no"))
    lines = ["| what | aim | measured | met |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _model(sizes):
    return f"{sizes['layers']} × {sizes['width']}, vocabulary {sizes['vocabulary']:,}"


def duration(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
