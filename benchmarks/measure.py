"""The measurements: worker processes take turns, A B C A B C, so that a drift of the machine hits all alike."""

import contextlib
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import corpus, loading, pretraining_measure, tokenizers
from benchmarks.client import Client
from benchmarks.sizes import BASE, QUICK

PARTS = ("inference", "step", "tokenizer", "load", *pretraining_measure.PARTS)
# Models that take turns with each other. Allocators keep what a step took, and what all of them took is more than
# 24 GB, so in training each stands beside ours alone.
GROUPS = {
    "inference": (
        (
            *("ours", "ours_bfloat16", "ours_bfloat16_weights", "bare", "bert4keras"),
            *("hugging_face", "hugging_face_bfloat16", "matmul", "matmul_bfloat16"),
        ),
    ),
    "step": (
        ("ours", "bare", "matmul"),
        ("ours", "bert4keras"),
        ("ours", "hugging_face"),
        ("ours", "ours_bfloat16", "matmul_bfloat16"),
    ),
}
SHAPES = {  # (batch, length)
    "inference": ((32, 128), (8, 512), (2, 1536)),
    "step": ((8, 128), (4, 512), (1, 1536)),
}
QUICK_SHAPES = {"inference": ((2, 32), (2, 64)), "step": ((2, 32), (2, 64))}
LINES = 4096


class Measurement(pretraining_measure.PretrainingMeasurement):
    """Measures the parts of pretraining and all others.

    Args:
        *args, **kwargs: Arguments of `PretrainingMeasurement`.
        quick: bool. Small sizes, to see that everything works.
    """

    def __init__(self, *args, quick=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.quick, self.sizes = quick, QUICK if quick else BASE

    def inference(self, results):
        """See `_model`."""
        self._model("inference", results)

    def step(self, results):
        """See `_model`."""
        self._model("step", results)

    def _model(self, task, results):
        """`{shape: {implementation: {"seconds": [...], "peak_mb": [...], "beside": [...]}}}`.

        `beside` are the seconds of ours in the same rounds.
        """
        for group in GROUPS[task]:
            self._group(task, results, self._chosen(group))

    def _group(self, task, results, names):
        if names in ([], ["ours"]) and results:
            return
        with contextlib.ExitStack() as stack:
            workers = {name: stack.enter_context(Client()) for name in names}
            for name, worker in workers.items():
                self.say(f"{task}: building {name}")
                sizes = asdict(self.sizes)
                worker("build", implementation=name, task=task, sizes=sizes, seed=self.seed)
            # graphs are traced in the first run, and once more in the second run of all
            warm_ups = 2
            for batch, length in (QUICK_SHAPES if self.quick else SHAPES)[task]:
                shape = f"{batch} x {length}"
                rounds = [
                    self._turn(workers, f"{task} {shape}", i, "run", batch=batch, length=length)
                    for i in range(-warm_ups, self.repeats)
                ]
                warm_ups = 1
                cases = _transposed(rounds[-self.repeats :])
                for case in cases.values():
                    if "ours" in cases:
                        case["beside"] = cases["ours"]["seconds"]
                results[shape] = {**cases, **results.get(shape, {})}
                self.keep()
            for worker in workers.values():
                self.versions.update(worker("versions"))

    def tokenizer(self, results):
        """`{level: {"cases": {case: {"seconds": [...]}}, "same_ids": {library: share of lines}}}`, and the lines."""
        count = 256 if self.quick else LINES
        lines = corpus.lines(count, self.seed)
        results.update(lines=count, mean_characters=sum(map(len, lines)) / count)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder, "vocab.txt")
            path.write_text(
                "".join(f"{token}\n" for token in corpus.vocabulary()), encoding="utf-8"
            )
            settings = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "2"}
            workers = {}
            for library in tokenizers.LIBRARIES:
                worker = workers[library] = stack.enter_context(Client(**settings))
                arguments = {"seed": self.seed, "count": count, "vocabulary_path": str(path)}
                worker("tokenizers", library=library, **arguments)
            for level in tokenizers.LEVELS:
                ids = {name: w("token_digests", level=level) for name, w in workers.items()}
                same = {
                    name: sum(a == b for a, b in zip(x, ids["bert4keras"])) / count
                    for name, x in ids.items()
                }
                rounds = []
                for number in range(-1, self.repeats):
                    rounds.append(
                        {
                            case: workers[library]("tokenize", level=level, size=size, way=way)
                            for case, (library, size, way) in tokenizers.CASES.items()
                        }
                    )
                    self.say(f"tokenizer {level}: {number + 1} of {self.repeats}")
                results[level] = {"cases": _transposed(rounds[1:]), "same_ids": same}
            for worker in workers.values():
                self.versions.update(worker("versions"))

    def load(self, results):
        """`{library: {"seconds": [...], "peak_mb": [...], ...}}`, and the size of the files."""
        with tempfile.TemporaryDirectory() as folder:
            folders, files = {}, {}
            for library in ("ours", "hugging_face"):
                folders[library] = str(Path(folder, library))
                with Client() as worker:
                    files[library] = worker(
                        "make_checkpoint",
                        library=library,
                        folder=folders[library],
                        sizes=asdict(self.sizes),
                    )
            folders["bert4keras"] = folders["ours"]
            rounds = []
            for number in range(min(self.repeats, 3)):
                rounds.append({})
                for library in loading.LIBRARIES:
                    with Client() as worker:
                        rounds[-1][library] = worker(
                            "load", library=library, folder=folders[library]
                        )
                self.say(f"load: {number + 1} of {min(self.repeats, 3)}")
        results.update(files_mb=files, libraries=_transposed(rounds))


def _transposed(rounds):
    """Turns a list of `{name: {key: value}}` into `{name: {key: [values]}}`."""
    return {
        name: {key: [answers[name][key] for answers in rounds] for key in answer}
        for name, answer in rounds[0].items()
    }
