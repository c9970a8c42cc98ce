"""Generates texts with a small GPT: by sampling, and by beam search.

python examples/generate.py 房间很 这本书
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
from pathlib import Path

import keras_hub

from roformer_tf import RoFormerCausalLM
from roformer_tf.samplers import BeamSearchSampler

TINY = Path(__file__).resolve().parent.parent / "checkpoints" / "chinese_roformer_gpt_tiny"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prompts", nargs="*", default=["房间很", "物流很快"])
    parser.add_argument("--model", default=str(TINY), help="folder, .zip or hf://user/name")
    parser.add_argument("--max-length", type=int, default=40, help="tokens of prompt and text")
    args = parser.parse_args()

    gpt = RoFormerCausalLM.from_preset(args.model)
    samplers = {
        "top-p": keras_hub.samplers.TopPSampler(p=0.9, temperature=0.7, seed=1),
        "beam search": BeamSearchSampler(num_beams=4),
    }
    for name, sampler in samplers.items():
        gpt.compile(sampler=sampler)
        for text in gpt.generate(args.prompts, max_length=args.max_length):
            print(f"{name}: {text}")


if __name__ == "__main__":
    main()
