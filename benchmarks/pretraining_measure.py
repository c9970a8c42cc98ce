"""Pretraining: the masked-only projection, our step and the original's, and real documents end to end."""

import contextlib
import json
import lzma
import os
import random
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.client import ROOT, Client
from benchmarks.sizes import BASE, QUICK, Sizes

SHARED = Path(os.environ.get("ROFORMER_TF_SHARED", ROOT.parent / "shared"))
WORKER = "benchmarks.pretraining_worker"
TINY = ROOT / "checkpoints" / "chinese_roformer_tiny" / "vocab.txt"
END_TO_END_MODELS = {
    "6x384": Sizes(layers=6, heads=6, width=384, intermediate=1536),
    "12x768": BASE,
}
# Processes keep the memory of a step, and three take more than 24 GB: each of ours runs beside the original alone.
PAIRS = [("original", name) for name in ("ours", "ours_bfloat16", "ours_original_adamw")]
# At twice the batch not even two fit: they run one after the other.
ALONE = ("original", "ours", "ours_bfloat16")
END_TO_END = {"ours_packed": 8, "ours_bucketed": 32, "original": 10}  # steps of a turn


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Args:
        sizes: `Sizes`. The models of `projection` and `pretraining`.
        projection, pair, alone: tuple. (batch, length) of the projection, of the pairs, and of the steps one after the
            other.
        end_to_end_sizes, end_to_end: `Sizes` and tuple. Model and (batch, length) of the real documents, with the
            vocabulary of its file.
        steps: dict. Steps of a turn with real documents. Lengths vary so much that a few steps say little.
        input_batches: int. Number of batches that the input makes without training.
        documents: int. The most documents to read.
        data, vocabulary: path. Folder of the documents, and `vocab.txt`.
    """

    sizes: Sizes = BASE
    projection: tuple = (8, 512)
    pair: tuple = (4, 512)
    alone: tuple | None = (8, 512)
    end_to_end_sizes: Sizes = END_TO_END_MODELS["6x384"]
    end_to_end: tuple = (8, 512)
    steps: dict = field(default_factory=END_TO_END.copy)
    input_batches: int = 64
    documents: int = 10**6
    data: Path = SHARED / "data" / "zh_pretrain"
    vocabulary: Path = TINY


SMALL = Setting(
    sizes=QUICK,
    projection=(2, 64),
    pair=(2, 64),
    alone=(4, 64),
    end_to_end_sizes=QUICK,
    end_to_end=(4, 64),
    steps={"ours_packed": 4, "ours_bucketed": 4, "original": 4},
    input_batches=4,
    documents=3000,
)


class PretrainingMeasurement:
    """Measures the parts of pretraining.

    Args:
        setting: `Setting`.
        repeats: int. Timed runs of each case.
        seed: int. Seed of batches, weights and the order of the documents.
        say: function that receives lines about the progress.
        keep: function that is called whenever there are new results.
        models: list of str. Defaults to all models.

    Attributes:
        versions: dict. The versions of what the workers imported.
    """

    def __init__(self, setting, repeats, seed, say=print, keep=lambda: None, models=None):
        self.setting, self.repeats, self.seed, self.say = setting, repeats, seed, say
        self.keep, self.models, self.versions = keep, models, {}

    def run(self, part, results):
        """Measures a part; `results` fill up as it goes."""
        getattr(self, part)(results)
        self.keep()

    def projection(self, results):
        """`{"difference": ..., "cases": {projection: {"seconds": [...], "peak_mb": ...}}}`.

        The memory of each projection is measured in a process that does nothing else.
        """
        (batch, length), sizes = self.setting.projection, asdict(self.setting.sizes)
        model, shape = {"sizes": sizes, "seed": self.seed}, {"batch": batch, "length": length}
        results.update(shape, sizes=sizes)
        with Client(WORKER) as worker:
            results["difference"] = worker("compare_projections", **model, **shape)
            self.versions.update(worker("versions"))
        self.say(f"projection, masked-only against full: {results['difference']}")
        self.keep()
        cases = results["cases"] = {"masked": {"seconds": []}, "full": {"seconds": []}}
        with Client(WORKER) as worker:
            worker("build_projection", **model)
            for _ in range(2):  # measures its memory while there is no other model
                answer = worker("run_projection", projection="masked", **shape)
            cases["masked"]["peak_mb"] = answer["peak_mb"]
            # building the second model takes TensorFlow's cache of kernels from the first
            for name in ("full", "masked"):
                worker("run_projection", projection=name, **shape)
            for number in range(self.repeats):
                for name, case in cases.items():
                    answer = worker("run_projection", projection=name, **shape)
                    case["seconds"].append(answer["seconds"])
                    self.say(f"projection, {name}, run {number + 1}: {answer['seconds']:.3f}")
        with Client(WORKER) as worker:
            worker("build_projection", **model)
            for _ in range(2):
                answer = worker("run_projection", projection="full", **shape)
            cases["full"]["peak_mb"] = answer["peak_mb"]

    def pretraining(self, results):
        """`{shape: {"sizes": ..., "alternating": bool, "cases": {name: {"seconds": [...], "beside": [...], ...}}}}`.

        `beside` are the seconds of the original in the same rounds.
        """
        pairs = [pair for pair in map(self._chosen, PAIRS) if len(pair) == 2]
        shapes = [(self.setting.pair, pairs, self.repeats, True)]
        if self.setting.alone:
            alone = [(name,) for name in self._chosen(ALONE)]
            shapes.append((self.setting.alone, alone, min(self.repeats, 2), False))
        for (batch, length), groups, repeats, alternating in shapes:
            cases = {}
            results[f"{batch} x {length}"] = {
                "sizes": asdict(self.setting.sizes),
                "alternating": alternating,
                "cases": cases,
            }
            for names in groups:
                rounds = self._rounds(names, batch, length, repeats)
                for name in names:
                    case = {key: [turn[name][key] for turn in rounds] for key in rounds[0][name]}
                    first = cases.get("original", case)["seconds"]
                    beside = (
                        [turn["original"]["seconds"] for turn in rounds] if alternating else first
                    )
                    cases.setdefault(name, {**case, "beside": beside})
                self.keep()

    def _rounds(self, names, batch, length, repeats):
        with contextlib.ExitStack() as stack:
            workers = {name: stack.enter_context(Client(WORKER)) for name in names}
            for name, worker in workers.items():
                model = {"name": name, "sizes": asdict(self.setting.sizes), "seed": self.seed}
                worker("build_training", **model, batch=batch, length=length)
            title = f"pretraining {batch} x {length}"
            rounds = [
                self._turn(workers, title, number, "run_training", steps=1)
                for number in range(-1, repeats)
            ]
            for worker in workers.values():
                self.versions.update(worker("versions"))
        return rounds[1:]

    def _turn(self, workers, title, number, call, **arguments):
        """Returns what each worker answers to a call. The number of a turn to warm up is negative."""
        answers = {name: worker(call, **arguments) for name, worker in workers.items()}
        times = ", ".join(f"{name} {a['seconds']:.3f}" for name, a in answers.items())
        self.say(f"{title}, {'warm-up' if number < 0 else f'run {number + 1}'}: {times}")
        return answers

    def end_to_end(self, results):
        """`{"cases": {name: {"seconds": [...], "tokens": [...], "places": [...], "input": {...}, ...}}, ...}`."""
        setting = self.setting
        lines, reason = documents(setting, self.seed)
        if reason:
            results["skipped"] = reason
            self.say(f"end_to_end is skipped: {reason}")
            return
        vocabulary_size = len(setting.vocabulary.read_text("utf-8").splitlines())
        sizes = replace(setting.end_to_end_sizes, vocabulary=vocabulary_size)
        batch, length = setting.end_to_end
        results.update(sizes=asdict(sizes), batch=batch, length=length, documents=len(lines))
        names = self._chosen(END_TO_END)
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = Path(folder, "shuffled.jsonl")
            path.write_text("".join(lines), encoding="utf-8")
            results["characters"] = sum(len(json.loads(line)["text"]) for line in lines)
            cases = results["cases"] = {}
            workers = {name: stack.enter_context(Client(WORKER)) for name in names}
            for name, worker in workers.items():
                case = cases[name] = worker(
                    "build_end_to_end",
                    **{"name": name, "sizes": asdict(sizes), "seed": self.seed, "path": str(path)},
                    **{"vocabulary": str(setting.vocabulary), "batch": batch, "length": length},
                    cache=str(Path(folder, "cache")),
                )
                case["input"] = worker("input_alone", batches=setting.input_batches)
                self.say(f"end_to_end, input of {name}: {case['input']}")
            for number in range(-1, self.repeats):
                for name, worker in workers.items():
                    steps = 2 if number < 0 else setting.steps[name]
                    answer = worker("run_end_to_end", steps=steps)
                    title = f"run {number + 1}" if number >= 0 else "warm-up"
                    speed = answer["tokens"] / answer["seconds"]
                    self.say(f"end_to_end, {name}, {title}: {speed:.0f} tokens/s, {answer}")
                    if number >= 0:
                        for key, value in answer.items():
                            cases[name].setdefault(key, []).append(value)
                self.keep()
            for worker in workers.values():
                worker("end")
                self.versions.update(worker("versions"))

    def _chosen(self, names):
        return [name for name in names if self.models is None or name in self.models]


PARTS = ("projection", "pretraining", "end_to_end")


def documents(setting, seed):
    """Returns lines of JSON in random order, and the reason if there are none."""
    if not setting.vocabulary.exists():
        return [], f"there is no {setting.vocabulary}"
    paths = [*setting.data.glob("*.jsonl.xz"), *setting.data.glob("*.jsonl")]
    if not paths:
        return [], f"there is no .jsonl or .jsonl.xz file in {setting.data} (--data)"
    lines = []
    for path in sorted(paths):
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as stream:
            lines += [json.dumps({"text": json.loads(line)["text"]}) + "\n" for line in stream]
    random.Random(seed).shuffle(lines)
    return lines[: setting.documents], None
