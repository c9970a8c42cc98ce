"""Makes the vocabulary of a word-level Chinese model from raw text.

    python examples/make_vocabulary.py examples/stages_tiny.toml --files 'TEXTS/*.jsonl.xz' --size 9216

Reads the training texts of the settings file, without the held-out ones, and writes the file named by
`[model] vocabulary`: special tokens; printable ASCII, with a `##` wordpiece for each letter and digit; every other
character that occurs at least `--min-count` times, so that hardly anything is [UNK]; then the most frequent words of
jieba's dictionary segmentation, up to `--size` tokens. Ties are in code point order.
"""

import roformer_tf  # noqa: F401  # isort: skip  before TensorFlow, which it keeps quiet

import argparse
import collections
import logging
from pathlib import Path

import jieba
from rich.progress import track

from roformer_tf.pretraining import PretrainingSettings, prepare_corpus
from roformer_tf.pretraining.corpus import read_shard

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ASCII = [chr(code) for code in range(33, 127) if not "A" <= chr(code) <= "Z"]
PIECES = [f"##{character}" for character in ASCII if character.isalnum()]
FIXED = SPECIAL_TOKENS + ASCII + PIECES


def make_vocabulary(texts, size, min_count=5):
    """Makes a list of at most `size` tokens from an iterable of strings, as described above."""
    words, characters = collections.Counter(), collections.Counter()
    for text in texts:
        text = text.lower()
        words.update(jieba.cut(text, HMM=False))
        characters.update(text)
    tokens = dict.fromkeys(FIXED)
    for counter, least in ((characters, min_count), (words, 2)):
        for token, count in sorted(counter.items(), key=lambda item: (-item[1], item[0])):
            if len(tokens) < size and count >= least and token.isprintable() and token.strip():
                tokens.setdefault(token)
    return list(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("settings", help="settings file of the run")
    parser.add_argument("--files", nargs="+", help="text files, instead of those in the settings")
    parser.add_argument("--cache", default="output/corpus", help="folder for the texts as read")
    parser.add_argument("--size", type=int, default=9216, help="number of tokens")
    parser.add_argument("--min-count", type=int, default=5, help="of a single character")
    args = parser.parse_args()
    if args.size <= len(FIXED):
        parser.error(
            f"--size must be above {len(FIXED)}, the tokens of every vocabulary. Received: {args.size}"
        )
    jieba.setLogLevel(logging.WARNING)
    try:
        settings = PretrainingSettings.from_file(args.settings)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    data = settings.data
    if settings.model.vocabulary is None:
        raise SystemExit(
            "error: `[model] vocabulary` must name the file to write; a `checkpoint` has its own."
        )
    corpus = prepare_corpus(
        args.files or data.files,
        data.cache or args.cache,
        held_out=data.held_out,
        txt_documents=data.txt_documents,
    )
    texts = (
        text.decode("utf-8")
        for chunk in track(corpus.shards, "Counting words")
        for text in read_shard(chunk).numpy()
    )
    vocabulary = make_vocabulary(texts, args.size, args.min_count)
    path = Path(settings.model.vocabulary)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8", newline="\n")
    print(f"{len(vocabulary):,} tokens of {corpus.num_characters:,} characters: {path}")


if __name__ == "__main__":
    main()
