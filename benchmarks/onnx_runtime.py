"""`python -m benchmarks.onnx_runtime`: what `export_onnx` writes, in ONNX Runtime, beside Hugging Face's model.

Hugging Face's classifier is exported by `torch.onnx.export`; sizes are alike, weights random. The three take turns in
one process that imports neither TensorFlow nor PyTorch. With `--data FOLDER` (ChnSentiCorp: `train.tsv.xz`,
`valid.tsv.xz`) the tiny checkpoint is fine-tuned with three seeds, and measured on the test texts in float32 and int8.
"""

import functools
import json
import multiprocessing
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import corpus, records
from benchmarks.client import ROOT
from benchmarks.sizes import MEDIUM, TINY, Sizes
from benchmarks.turns import take_turns, timed

SHAPES = ((1, 32), (8, 128), (4, 512))
SIDES = {
    "float32": "`export_onnx`, float32",
    "int8": "`export_onnx`, int8",
    "hugging_face": "Hugging Face, `torch.onnx.export`",
}
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import client
texts = json.load(sys.stdin)
order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
classes = [0] * len(texts)
for start in range(0, len(texts), 32):
    rows = order[start : start + 32]
    for i, found in zip(rows, client.run([texts[i] for i in rows])["class_id"]):
        classes[i] = int(found)
print(json.dumps(classes))
"""


def export_ours(sizes, folder):
    """Writes `float32/` and `int8/`."""
    from benchmarks.everyday_worker import Ours
    from roformer_tf.export import export_onnx

    classifier = Ours(Sizes(**sizes), corpus.vocabulary()).classifier
    for name, quantize in (("float32", None), ("int8", "int8")):
        export_onnx(classifier, Path(folder) / name, quantize=quantize)


def export_hugging_face(sizes, folder):
    """Writes `hugging_face/model.onnx`."""
    import torch
    from transformers import RoFormerConfig, RoFormerForSequenceClassification

    config = RoFormerConfig(**Sizes(**sizes).hugging_face_config(), num_labels=2)
    classifier = RoFormerForSequenceClassification(config).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = classifier

        def forward(self, token_ids, padding_mask, segment_ids):
            return self.classifier(token_ids, padding_mask, segment_ids).logits

    ids = torch.randint(5, 100, (2, 16))
    names = ["token_ids", "padding_mask", "segment_ids"]
    path = Path(folder) / "hugging_face" / "model.onnx"
    path.parent.mkdir()
    torch.onnx.export(
        *(Logits(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), str(path)),
        input_names=names,
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(names, {0: "batch", 1: "length"}),
        opset_version=18,
        dynamo=False,  # the other exporter needs one more package
    )


def elsewhere(function, *arguments):
    """Runs a function in a process of its own, so that its library leaves no threads here."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed.")


def speed(sizes, folder, repeats):
    """Returns the results, a dictionary for each shape and side."""
    import onnxruntime

    sessions = {
        side: onnxruntime.InferenceSession(str(Path(folder) / side / "model.onnx"))
        for side in SIDES
    }
    results = []
    for batch, length in SHAPES:
        ids = np.random.default_rng(0).integers(5, 100, (batch, length))
        inputs = {"token_ids": ids, "padding_mask": 0 * ids + 1, "segment_ids": 0 * ids}
        calls = {}
        for side, session in sessions.items():
            dtype = "int64" if side == "hugging_face" else "int32"
            typed = {name: x.astype(dtype) for name, x in inputs.items()}
            calls[side] = timed(functools.partial(session.run, ["logits"], typed))
        runs = take_turns(calls, repeats, uncounted=3)
        size = {side: (Path(folder) / side / "model.onnx").stat().st_size for side in SIDES}
        for side, seconds in runs.items():
            ratios = [own / first for own, first in zip(seconds, runs["float32"], strict=True)]
            results.append(
                {
                    "row": f"{batch} × {length}",
                    "side": side,
                    "milliseconds": 1e3 * median(seconds),
                    "ratio": median(ratios),
                    "megabytes": size[side] / 1e6,
                    "runs": seconds,
                }
            )
    return results


def accuracy(seed, data, folder, epochs):
    """Fine-tunes, exports, and writes the accuracies to `accuracy.json`."""
    sys.path.insert(0, str(ROOT / "examples"))
    import finetune_classifier as example
    import keras

    from roformer_tf.export import export_onnx

    keras.utils.set_random_seed(seed)
    parts, labels = example.load_data(f"{data}/train.tsv.xz", f"{data}/valid.tsv.xz")
    classifier = example.fine_tune(example.TINY, parts, len(labels), epochs=epochs, seed=seed)
    texts, expected = parts["test"]
    found = {"keras": float(classifier.evaluate(texts, expected, verbose=0)[1])}
    for name, quantize in (("float32", None), ("int8", "int8")):
        written = export_onnx(classifier, Path(folder) / name, quantize=quantize, overwrite=True)
        answer = subprocess.run(
            [sys.executable, "-I", "-c", ASK, str(written)],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found[name] = float(np.mean(np.array(json.loads(answer)) == expected))
    (Path(folder) / "accuracy.json").write_text(json.dumps(found))


def table(record):
    """Returns lines of Markdown."""
    lines = ["| batch × length | model | median | of float32 | file |", "|---|---|---|---|---|"]
    for r in record["results"]:
        if "seed" not in r:
            times = f"{r['milliseconds']:.1f} ms | {r['ratio']:.2f} ×"
            lines.append(f"| {r['row']} | {SIDES[r['side']]} | {times} | {r['megabytes']:.0f} MB |")
    rows = [r for r in record["results"] if "seed" in r]
    if rows:
        lines += ["", "| accuracy on ChnSentiCorp | Keras | float32 | int8 |", "|---|---|---|---|"]
        mean = {name: np.mean([r[name] for r in rows]) for name in ("keras", "float32", "int8")}
        for title, r in [*((f"seed {r['seed']}", r) for r in rows), ("mean", mean)]:
            cells = [f"{r[name]:.2%}" for name in ("keras", "float32", "int8")]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def main(arguments=None):
    parser = records.make_parser("onnx_runtime", __doc__)
    parser.add_argument("--repeats", type=int, default=15, help="timed turns (%(default)s)")
    parser.add_argument("--data", type=Path, help="folder of ChnSentiCorp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args(arguments)
    output = records.output_of(given, "onnx_runtime")
    sizes = asdict(TINY if given.quick else MEDIUM)
    record = {**records.made_by("benchmarks.onnx_runtime", arguments), "sizes": sizes}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds if given.data else ():
            elsewhere(accuracy, seed, given.data, folder, given.epochs)
            found = json.loads((Path(folder) / "accuracy.json").read_text())
            results.append({"seed": seed, **found})
            print(results[-1], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        elsewhere(export_ours, sizes, folder)
        elsewhere(export_hugging_face, sizes, folder)
        record["results"] = speed(sizes, folder, given.repeats) + results
    about = f"Classifiers of {sizes['layers']} layers of width {sizes['width']}; medians, in turns."
    records.report(output, record, "ONNX Runtime", about, table(record))


if __name__ == "__main__":
    main()
