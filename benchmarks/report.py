"""Kept results to the tables of README.md and the chart."""

import re
from statistics import median

from benchmarks import pretraining_report, records
from benchmarks.models import matmul_size
from benchmarks.pretraining_report import duration
from benchmarks.sizes import Sizes
from benchmarks.tokenizers import LEVELS

TITLES = {
    "ours": "roformer_tf, float32",
    "ours_bfloat16": "roformer_tf, mixed_bfloat16",
    "ours_bfloat16_weights": "roformer_tf, bfloat16, weights too",
    "bare": "bare TensorFlow, float32",
    "bert4keras": "bert4keras (tf-keras), float32",
    "hugging_face": "Hugging Face (PyTorch), float32",
    "hugging_face_bfloat16": "Hugging Face (PyTorch), bfloat16",
}
SHORT = {"ours": "roformer_tf", "bert4keras": "bert4keras", "hugging_face": "Hugging Face"}


def write(record, folder):
    """Puts the tables between their markers in README.md, and draws `results/ratios.png`."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, lines in tables(record).items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marked.search(text):
            raise ValueError(f"{path} has no lines `<!-- {name} -->` and `<!-- /{name} -->`")
        body = "\n".join(lines) + "\n"
        text = marked.sub(lambda match, body=body: match.group(1) + body + match.group(2), text)
    records.write_text(path, text)
    chart(record, folder / "results" / "ratios.png")


def tables(record):
    """`{marker: lines of Markdown}`, for the parts that the record has."""
    results, made = record["results"], pretraining_report.tables(record)
    runs = {True: {}, False: {}}
    for part, run in record["runs"].items():
        runs[part in pretraining_report.PARTS][part] = run
    if runs[True]:
        made["pretraining_setting"] = _setting({**record, "runs": runs[True]})
    if not runs[False]:
        return made
    made["setting"] = _setting({**record, "runs": runs[False]})
    for task in ("inference", "step"):
        if results.get(task):
            made[task] = _model_table(results[task], record["sizes"], task)
    if "tokenizer" in results:
        made["tokenizer"] = _tokenizer_table(results["tokenizer"])
    if "load" in results:
        made["load"] = _load_table(results["load"])
    made["aims"] = _aims(results)
    return made


def ratio(shape, name, reference):
    """Returns how many times as long as `reference` a run takes: the median over the rounds."""
    case = shape[name]
    others = shape[reference]["seconds"] if reference != "ours" else case["beside"]
    pairs = zip(case["seconds"], others, strict=True)
    return median(a / b for a, b in pairs)


def fastest_ratio(shape, name):
    """Returns the same of the fastest runs, which other work on the machine disturbs least, against ours."""
    return min(shape[name]["seconds"]) / min(shape[name]["beside"])


def matmul_rate(shape, sizes, dtype="float32"):
    """Returns the operations per second of a large matrix product in the same rounds, the fastest, or `None`."""
    name = "matmul" if dtype == "float32" else "matmul_bfloat16"
    if name not in shape:
        return None
    return 2 * matmul_size(sizes) ** 3 / min(shape[name]["seconds"])


def _setting(record):
    machine, versions = record["machine"], record["versions"]
    names = ("tensorflow", "keras", "keras_hub", "tf_keras", "bert4keras", "torch", "transformers")
    used = ", ".join(f"{n} {versions[n]}" for n in names if versions.get(n, "?") != "?")
    lines = [
        f"{machine['cpu']} ({', '.join(machine['flags'])}), {machine['cores']} cores, "
        f"{machine['memory_mb'] / 1024:.0f} GB; Python {machine['python']}, {used}.",
        "",
        "| part | command | date | seed | timed runs | minutes | load average before, after |",
        "|---|---|---|---|---|---|---|",
    ]
    for part, run in record["runs"].items():
        loads = [run.get(f"load_average_{when}") for when in ("before", "after")]
        loads = ", ".join("–" if load is None else f"{load:.1f}" for load in loads)
        lines.append(
            f"| {part} | `{run['command']}` | {run['date']} | {run['seed']} | {run['repeats']} "
            f"| {run.get('minutes') or '–'} | {loads} |"
        )
    return lines


def _model_table(results, sizes, task):
    sizes = Sizes(**sizes)
    flops = sizes.inference_flops if task == "inference" else sizes.step_flops
    lines = [
        "| batch × length | model | median | of roformer_tf float32 | fastest | of roformer_tf float32 | GFLOP/s "
        "| of the matmul rate | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, cases in results.items():
        batch, length = map(int, shape.split(" x "))
        for name in [name for name in TITLES if name in cases]:
            dtype = "bfloat16" if "bfloat16" in name else "float32"
            seconds = median(cases[name]["seconds"])
            fastest = min(cases[name]["seconds"])
            rate = flops(batch, length) / fastest
            machine_rate = matmul_rate(cases, sizes, dtype)
            share = f"{rate / machine_rate:.0%}" if machine_rate else "–"
            memory = max(cases[name]["peak_mb"]) / 1024
            lines.append(
                f"| {batch} × {length} | {TITLES[name]} | {duration(seconds)} | {ratio(cases, name, 'ours'):.2f} "
                f"| {duration(fastest)} | {fastest_ratio(cases, name):.2f} "
                f"| {rate / 1e9:.0f} | {share} | {memory:.2f} GB |"
            )
        rates = {dtype: matmul_rate(cases, sizes, dtype) for dtype in ("float32", "bfloat16")}
        both = ", ".join(f"{dtype} {rate / 1e9:.0f}" for dtype, rate in rates.items() if rate)
        if both:
            lines.append(f"| {batch} × {length} | matmul rate: {both} GFLOP/s | | | | | | | |")
    return lines


def _tokenizer_table(results):
    count = results["lines"]
    lines = [
        f"{count} lines of {results['mean_characters']:.0f} characters on average.",
        "",
        "| level | tokenizer | lines/s | µs/line | times bert4keras |",
        "|---|---|---|---|---|",
    ]
    for level in LEVELS:
        cases = results[level]["cases"]
        for name, case in cases.items():
            seconds = median(case["seconds"])
            lines.append(
                f"| {level} | {name.replace('ours', 'roformer_tf')} | {count / seconds:,.0f} "
                f"| {seconds / count * 1e6:.0f} | {ratio(cases, 'bert4keras', name):.1f} |"
            )
        same = results[level]["same_ids"]
        shares = ", ".join(f"{SHORT[n]} {s:.2%}" for n, s in same.items() if n != "bert4keras")
        lines.append(f"| {level} | lines with the ids of bert4keras: {shares} | | | |")
    return lines


def _load_table(results):
    lines = [
        "| | files | model | build and load | peak / model | load alone | peak above the built model / model |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in results["libraries"].items():
        size = case["model_mb"][0]
        files = results["files_mb"].get(name, results["files_mb"]["ours"])
        alone = ["–", "–"]
        if "loading_seconds" in case:
            alone = [
                duration(median(case["loading_seconds"])),
                f"{median(case['loading_peak_mb']) / size:.2f}",
            ]
        lines.append(
            f"| {SHORT[name]} | {files:.0f} MB | {size:.0f} MB | {duration(median(case['seconds']))} "
            f"| {median(case['peak_mb']) / size:.2f} | {alone[0]} | {alone[1]} |"
        )
    return lines


def _aims(results):
    """Compares every aim with what was measured at each length."""
    rows = []

    def over_lengths(title, task, name, at_least, inverse=False):
        measured = results.get(task, {}).items()
        ratios = {shape: ratio(cases, name, "ours") for shape, cases in measured if name in cases}
        if not ratios:
            return
        fastest = {s: fastest_ratio(c, name) for s, c in measured if name in c}
        if inverse:
            ratios, fastest = ({s: 1 / r for s, r in x.items()} for x in (ratios, fastest))
        values = ", ".join(
            f"{r:.2f}, fastest {fastest[shape]:.2f} ({shape.replace('x', '×')})"
            for shape, r in ratios.items()
        )
        met = sum(r >= at_least for r in ratios.values())
        verdict = "yes" if met == len(ratios) else f"at {met} of {len(ratios)} lengths"
        rows.append((title, f"≥ {at_least}", values, verdict if met else "no"))

    over_lengths("inference: bare / ours, float32", "inference", "bare", 1.0)
    over_lengths(
        "inference: ours float32 / mixed_bfloat16", "inference", "ours_bfloat16", 1.6, inverse=True
    )
    over_lengths("step: bare / ours, float32", "step", "bare", 1.0)
    over_lengths("step: bert4keras / ours, float32", "step", "bert4keras", 1.3)
    over_lengths("step: Hugging Face / ours, float32", "step", "hugging_face", 2.3)
    for level in LEVELS if "tokenizer" in results else ():
        cases = results["tokenizer"][level]["cases"]
        ours = {n: ratio(cases, "bert4keras", n) for n in cases if n.startswith("ours")}
        values = ", ".join(f"{r:.1f} ({name.removeprefix('ours, ')})" for name, r in ours.items())
        met = sum(r >= 5 for r in ours.values())
        verdict = "yes" if met == len(ours) else f"{met} of {len(ours)} ways" if met else "no"
        rows.append((f"tokenizer, {level} level: bert4keras / ours", "≥ 5", values, verdict))
    if "load" in results:
        load = results["load"]["libraries"]["ours"]
        extra = median(load["loading_peak_mb"]) / load["model_mb"][0]
        verdict = "yes" if extra < 1.3 else "no"
        rows.append(("load: peak above the built model / model", "< 1.3", f"{extra:.2f}", verdict))
    lines = ["| what | aim | measured | met |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def chart(record, path):
    """Draws bars of time against roformer_tf float32, for inference and training steps."""
    from matplotlib.figure import Figure

    tasks = {"inference": "Inference", "step": "Masked-LM training step"}
    tasks = {task: title for task, title in tasks.items() if record["results"].get(task)}
    if not tasks:
        return
    figure = Figure(figsize=(6.5 * len(tasks), 4.5))
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)
    for axis, (task, title) in zip(axes[0], tasks.items(), strict=True):
        results = record["results"][task]
        names = [name for name in TITLES if all(name in cases for cases in results.values())]
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            heights = [ratio(cases, name, "ours") for cases in results.values()]
            places = [x + (i - (len(names) - 1) / 2) * width for x in range(len(results))]
            bars = axis.bar(
                places, heights, width, label=TITLES[name], color=f"C{list(TITLES).index(name)}"
            )
            axis.bar_label(bars, fmt="%.2f", fontsize=7)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(results)), [shape.replace("x", "×") for shape in results])
        axis.set_xlabel("batch × length")
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("time / time of roformer_tf float32 (less is better)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
