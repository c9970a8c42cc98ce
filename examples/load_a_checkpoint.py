"""Loads a checkpoint, shows what is in it, fills masks, and saves it in the original format.

python examples/load_a_checkpoint.py
python examples/load_a_checkpoint.py chinese_roformer_L-12_H-768_A-12 --output saved
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
from pathlib import Path

from roformer_tf import RoFormerMaskedLM
from roformer_tf.checkpoint import inspect_checkpoint, save_checkpoint
from roformer_tf.models import fill_mask

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_tiny"
TEXTS = ["今天[MASK]非常好。", "这家酒店的[MASK]很干净，服务员也很热情。"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", default=TINY, help="folder of the checkpoint")
    parser.add_argument("--output", help="folder to save to, in the original format")
    args = parser.parse_args()

    # Reads names, shapes and settings, but no weights.
    report = inspect_checkpoint(args.folder)
    print(f"family {report.family}, {report.num_parameters:,} weights, complete: {report.complete}")

    masked_lm = RoFormerMaskedLM.from_preset(str(args.folder))
    token_ids, segment_ids = masked_lm.preprocessor.tokenizer.encode(["今天天气非常好。"])
    print("token ids", token_ids)

    for text, masks in zip(TEXTS, fill_mask(masked_lm, TEXTS, top_k=3)):
        guesses = ", ".join(f"{token} {probability:.0%}" for token, probability in masks[0])
        print(f"{text} {guesses}")

    if args.output:
        save_checkpoint(masked_lm, args.output)


if __name__ == "__main__":
    main()
