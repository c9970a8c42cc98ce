"""Trains a small translation model on your sentence pairs, from raw strings to raw strings.

    python examples/translate.py pairs.tsv --output english_german
    python -m roformer_tf translate english_german "Two dogs run in the snow."

The file is tab-separated: source, target. Multi30k (29,000 pairs) takes a quarter of an hour on one core.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import csv
import tempfile

import keras

from roformer_tf import (
    RoFormerSentencePieceTokenizer,
    RoFormerSeq2SeqBackbone,
    RoFormerSeq2SeqLM,
    RoFormerSeq2SeqLMPreprocessor,
)
from roformer_tf.models import SmoothedCrossentropy, translate
from roformer_tf.optimizers import InverseSquareRootDecay, LastWeights
from roformer_tf.text import token_batches, train_sentencepiece


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", help="tab-separated file of sources and targets")
    parser.add_argument("--output", default="output/translator", help="folder of the model")
    parser.add_argument("--vocabulary-size", type=int, default=4000)
    parser.add_argument("--hidden-dim", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()

    with open(args.pairs, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    sources, targets = ([row[i] for row in rows] for i in range(2))

    keras.utils.set_random_seed(0)
    proto = train_sentencepiece(sources + targets, args.vocabulary_size)
    tokenizer = RoFormerSentencePieceTokenizer(proto)
    backbone = RoFormerSeq2SeqBackbone(
        args.vocabulary_size,
        num_layers=3,
        num_heads=4,
        hidden_dim=args.hidden_dim,
        intermediate_dim=4 * args.hidden_dim,
    )
    model = RoFormerSeq2SeqLM(backbone, RoFormerSeq2SeqLMPreprocessor(tokenizer))
    schedule = InverseSquareRootDecay(2e-3, max(args.steps // 5, 1))
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        SmoothedCrossentropy(0.1),
        jit_compile=False,
    )
    epochs = min(20, args.steps)
    batches = token_batches((sources, targets), tokenizer, max_tokens=1024, max_length=64, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        last = LastWeights(folder, keep=5)
        steps = args.steps // epochs
        model.fit(batches, epochs=epochs, steps_per_epoch=steps, callbacks=[last], verbose=2)
        last.average()
    model.save_to_preset(args.output)
    for source, translation in zip(sources[:3], translate(model, sources[:3])):
        print(f"{source} → {translation}")


if __name__ == "__main__":
    main()
