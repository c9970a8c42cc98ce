"""The rules of the house that no linter knows."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "roformer_tf"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A part of the package imports only parts on lower floors (CONTRIBUTING.md has the picture).
FLOORS = {
    "rotary": 0,
    "rope_scaling": 0,
    "files": 0,
    "checks": 0,
    "startup": 0,
    "naming": 0,
    "layers": 1,
    "optimizers": 1,
    "samplers": 1,
    "checkpoint": 2,
    "text": 3,  # a tokenizer's `from_preset` starts from an opened folder
    "models": 4,
    "export": 5,
    "pretraining": 5,
    "cli": 6,
    "__main__": 7,
}
# These run under every Keras backend. What packs strings for tf.data is TensorFlow by nature.
KERAS_ONLY = (
    "rotary",
    "rope_scaling",
    "checks",
    "naming",
    "layers",
    "models",
    "optimizers",
    "samplers",
)
PREPROCESSING = re.compile(r"models/(batches|\w+_preprocessor)\.py")
MAX_LINES = 500
LONGER_FILES = set()  # paths, each with its reason

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks",
    "checkpoints",
    "docs",
    "examples",
    "experiments",
    "pyproject.toml",
    "requirements-hf.lock",
    "requirements.lock",
    "roformer_tf",
    "setup.cfg",
    "tests",
}


def part_of(path):
    """`layers` for roformer_tf/layers/x.py, `rotary` for roformer_tf/rotary.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path):
    """Yields (module's dotted name, line, whether inside a function) of every import in a file."""

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "roformer_tf":  # `from roformer_tf import rotary`
                yield from ((f"{module}.{alias.name}", node.lineno, lazy) for alias in node.names)
            else:
                yield module, node.lineno, lazy
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), lazy=False)


@pytest.fixture(scope="module")
def tracked_files():
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_parts_import_only_from_lower_floors():
    wrong = []
    for path in SOURCES:
        part = part_of(path)
        if part == "__init__":
            continue
        if part not in FLOORS:
            wrong.append(f"{path.relative_to(ROOT)}: say in FLOORS on which floor {part!r} is")
            continue
        for module, line, _ in imports_of(path):
            if not module.startswith(("roformer_tf", ".")):
                continue
            other = module.split(".")[1] if module.startswith("roformer_tf.") else module
            if other not in FLOORS and module.split(".")[0] == "roformer_tf":
                other = "models"  # the package itself, or a public name of its top
            if other != part and FLOORS.get(other, 99) >= FLOORS[part]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong


def test_layers_and_models_import_no_tensorflow():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in SOURCES
        if part_of(path) in KERAS_ONLY
        and not PREPROCESSING.fullmatch(path.relative_to(PACKAGE).as_posix())
        for module, line, lazy in imports_of(path)
        if module.split(".")[0] in ("tensorflow", "tensorflow_text") and not lazy
    ]
    assert not wrong


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert set(long) == LONGER_FILES, f"over {MAX_LINES} lines: {long}"


def test_no_path_of_a_machine_in_tracked_files(tracked_files):
    # the home of somebody's files; a URL's path has a letter before its slash
    machine_path = re.compile(r"(?<![\w.<>$)}-])/(?:work|root|home/\w+|Users/\w+)/")
    found = []
    for path in tracked_files:
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary, or deleted and not committed yet
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if machine_path.search(line)
        ]
    assert not found


def test_top_level_of_the_repository(tracked_files):
    unknown = {path.relative_to(ROOT).parts[0] for path in tracked_files} - TOP_LEVEL
    assert not unknown, "a new file or folder at the top: agree on it and add it to TOP_LEVEL"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-hf.lock"])
def test_lock_pins_versions_and_nothing_else(name):
    lines = (ROOT / name).read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+", pin) for pin in pins)
    assert pins == sorted(pins, key=lambda pin: pin.lower().replace("_", "-").split("==")[0])
