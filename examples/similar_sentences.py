"""Compares sentences by their vectors, and paraphrases the first one, with a small English RoFormer-Sim.

python examples/similar_sentences.py "I prefer coffee." "I like coffee better." "Seriously?"
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
from pathlib import Path

from roformer_tf import RoFormerSim

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "english_roformer_sim_tiny"
TEXTS = ["I prefer coffee.", "I like coffee better.", "Seriously?"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="*", default=TEXTS)
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    args = parser.parse_args()

    sim = RoFormerSim.from_preset(args.model)
    vectors = sim.embed(args.texts)  # (texts, hidden_dim), of length 1
    for text, vector in zip(args.texts, vectors):
        print(f"{vector @ vectors[0]:.3f} {text}")

    print(f"\nLike {args.texts[0]!r}:")
    for text, similarity in sim.similar(args.texts[0], n=20, k=3, max_length=32):
        print(f"{similarity:.3f} {text}")


if __name__ == "__main__":
    main()
