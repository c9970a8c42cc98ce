"""`python -m benchmarks.pretraining_input --data DIR`: the input of pretraining without training, on raw text.

DIR holds `.jsonl` or `.txt` files, plain or compressed. For each length, packing and number of threads, the benchmark
reads batches as fast as they come, and measures real tokens per second and the share of padding. It also counts how
tokens were masked. Prints tables in Markdown and writes all numbers to a file of JSON lines.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import roformer_tf
from benchmarks import machine, records
from benchmarks.client import ROOT
from roformer_tf.pretraining import Stage, prepare_corpus, training_batches
from roformer_tf.pretraining.settings import DataSettings

LENGTHS = (128, 512, 1536)
PACKINGS = {"none": "one chunk a sequence, bucketing", "block_diagonal": "packed"}
FORMS = ("jsonl", "txt", "jsonl.gz", "txt.gz", "jsonl.xz", "txt.xz")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretraining_input", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of text files")
    parser.add_argument(
        "--vocabulary",
        type=Path,
        default=ROOT / "checkpoints/chinese_roformer_tiny",
        help="folder with vocab.txt (%(default)s)",
    )
    parser.add_argument(
        "--threads", default="1,2", help="numbers of threads, separated by commas (%(default)s)"
    )
    parser.add_argument("--batch", type=int, default=64, help="global batch size (%(default)s)")
    parser.add_argument(
        "--windows", type=int, default=3, help="windows of 16 batches to time (%(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=records.RESULTS / "pretraining_input.jsonl",
        help="file for the results (%(default)s)",
    )
    arguments = parser.parse_args()
    files = tuple(str(path) for form in FORMS for path in sorted(arguments.data.glob(f"*.{form}")))
    tokenizer = roformer_tf.RoFormerTokenizer.from_preset(str(arguments.vocabulary))
    record = {
        **records.made_by("benchmarks.pretraining_input"),
        "batch": arguments.batch,
        "windows": arguments.windows,
        "word_level": tokenizer.word_level,
        "load_average_before": machine.load_average(),
        "results": [],
    }
    with tempfile.TemporaryDirectory() as cache:
        start = time.monotonic()
        corpus = prepare_corpus(list(files), cache)
        record["corpus"] = {
            "documents": corpus.num_documents,
            "characters": corpus.num_characters,
            "seconds_to_prepare": round(time.monotonic() - start, 2),
        }
        for length in LENGTHS:
            for packing in PACKINGS:
                for threads in map(int, arguments.threads.split(",")):
                    result = measure(corpus, tokenizer, files, length, packing, threads, arguments)
                    record["results"].append(result)
        record["masking"] = masking(corpus, tokenizer, files)
    record["load_average_after"] = machine.load_average()
    records.write(arguments.output, record)
    print("\n".join(report(record)))
    print(f"\nkept in {arguments.output}")


def measure(corpus, tokenizer, files, length, packing, threads, arguments):
    """Measures tokens per second from the second window on, and the share of padding."""
    stage = Stage(
        max_length=length, global_batch_size=arguments.batch, steps=1, learning_rate=0.001
    )
    data = DataSettings(files=files, packing=packing)
    begun = time.monotonic()
    first = None
    batches = tokens = places = labels = 0
    for batch in training_batches(corpus, tokenizer, stage, data, 0, 0, threads=threads):
        now = time.monotonic()
        if first is None:
            first = now - begun
        window = int(batch["window"][0])
        if window == 1 and not batches:
            start = now  # earlier windows are done, and one and a half are in the works
        if window == arguments.windows + 1:
            break
        if window:
            batches += 1
            tokens += int(np.sum(batch["padding_mask"]))
            places += batch["padding_mask"].shape.num_elements()
            labels += int(np.sum(batch["label_weights"]))
    seconds = now - start
    return {
        "max_length": length,
        "packing": packing,
        "threads": threads,
        "batches": batches,
        "seconds": round(seconds, 2),
        "first_batch_seconds": round(first, 2),
        "tokens_per_second": round(tokens / seconds),
        "padding": round(1 - tokens / places, 4),
        "labels_of_tokens": round(labels / tokens, 4),
    }


def masking(corpus, tokenizer, files, batches=100):
    """Counts what happened to the tokens of some batches, with the original's rates."""
    stage = Stage(max_length=512, global_batch_size=32, steps=1, learning_rate=0.001)
    data = DataSettings(files=files, packing="full")
    special = list(tokenizer.special_token_ids)
    count = dict.fromkeys(("selectable", "chosen", "mask", "kept", "random"), 0)
    for batch in training_batches(corpus, tokenizer, stage, data, 0, 1).take(batches):
        batch = {name: value.numpy() for name, value in batch.items()}
        used = batch["label_weights"] > 0
        row = np.nonzero(used)[0]
        labels, places = batch["labels"][used], batch["mask_positions"][used]
        shown = batch["token_ids"][row, places]
        original = batch["token_ids"].copy()
        original[row, places] = labels
        count["selectable"] += int(np.sum(~np.isin(original, special)))
        count["chosen"] += len(labels)
        count["mask"] += int(np.sum(shown == tokenizer.mask_token_id))
        count["kept"] += int(np.sum(shown == labels))
    count["random"] = count["chosen"] - count["mask"] - count["kept"]
    return count


def table(record):
    """Yields a row for each length and packing, with a column for each number of threads."""
    threads = sorted({r["threads"] for r in record["results"]})
    yield f"| max_length | rows | tokens/s, {' | '.join(_threads(n) for n in threads)} | padding |"
    yield "|" + "---|" * (3 + len(threads))
    rows = {}
    for r in record["results"]:
        rows.setdefault((r["max_length"], r["packing"]), {})[r["threads"]] = r
    for (length, packing), row in rows.items():
        speeds = " | ".join(f"{row[n]['tokens_per_second']:,}" for n in threads)
        padding = row[threads[0]]["padding"]
        yield f"| {length} | {PACKINGS[packing]} | {speeds} | {padding:.2%} |"


def _threads(number):
    return f"{number} thread{'s' * (number > 1)}"


def report(record):
    """Yields lines of Markdown."""
    corpus = record["corpus"]
    yield (
        f"{corpus['documents']:,} documents, {corpus['characters']:,} characters, read from the raw files in "
        f"{corpus['seconds_to_prepare']} s; {'word' if record['word_level'] else 'character'} level; batches of "
        f"{record['batch']} sequences, {record['windows']} windows. Load average before and after: "
        f"{record['load_average_before']:.1f}, {record['load_average_after']:.1f}."
    )
    yield ""
    yield from table(record)
    yield ""
    m = record["masking"]
    yield "| masking | share | aim |"
    yield "|---|---|---|"
    yield f"| tokens chosen, of {m['selectable']:,} | {m['chosen'] / m['selectable']:.3%} | 15 % |"
    for name, aim in (("mask", "80 %"), ("kept", "10 %"), ("random", "10 %")):
        yield f"| of these {name} | {m[name] / m['chosen']:.3%} | {aim} |"


if __name__ == "__main__":
    main()
