"""Rules of the repository that no linter checks."""

import ast
import graphlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "roformer_tf"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A part of the package imports only parts on lower floors (CONTRIBUTING.md has the picture).
FLOORS = (
    "portable files checks startup naming",
    "rotary rope_scaling activations",
    "layers optimizers samplers",
    "checkpoint",
    "text",  # a tokenizer's `from_preset` starts from an opened folder
    "models",
    "export pretraining",
    "app compat",
    "cli",
    "__main__",
)
FLOORS = {part: floor for floor, parts in enumerate(FLOORS) for part in parts.split()}
# These run under every Keras backend, but for the preprocessing of strings.
KERAS_ONLY = "rotary rope_scaling activations portable checks naming layers models optimizers samplers".split()
PREPROCESSING = re.compile(
    r"models/(answer\w*|batches|entit\w+|labels|prediction|training_data|\w+_preprocessor)\.py"
)
MAX_LINES = 500
LONGER_FILES = set()  # paths, each with its reason

TOP_LEVEL = """
    .ci .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE MANIFEST.in Makefile README.md
    README.zh.md benchmarks checkpoints docs examples experiments roformer_tf tests
    mkdocs.yml pyproject.toml requirements-app.lock requirements-dist.lock requirements-docs.lock
    requirements-hf.lock requirements.lock setup.cfg
""".split()


def part_of(path):
    """`layers` for roformer_tf/layers/x.py, `rotary` for roformer_tf/rotary.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path, names=("roformer_tf",), type_checking=True):
    """Yields (module's dotted name, line, whether inside a function) of every import in a file.

    `from a import b` gives `a.b` if `a` is one of `names`, else `a`. Imports under `TYPE_CHECKING`
    are left out unless `type_checking`.
    """

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module in names:  # `from roformer_tf import rotary`
                yield from ((f"{module}.{alias.name}", node.lineno, lazy) for alias in node.names)
            else:
                yield module, node.lineno, lazy
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not type_checking:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                node.body = []
    yield from visit(tree, lazy=False)


def import_circle(package):
    """Returns the files of a package that import each other in a circle, or `None`."""
    modules = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for name, path in modules.items():
        graph[name] = set()
        for imported, *_ in imports_of(path, names=modules, type_checking=False):
            # `a.b` is the file a/b.py, or a name in the file a.py or a/__init__.py
            imported = imported if imported in modules else imported.rpartition(".")[0]
            graph[name] |= {imported} & modules.keys()
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]


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
            wrong.append(f"{path.relative_to(ROOT)}: add the floor of {part!r} to FLOORS")
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


def test_no_import_circle():
    assert import_circle(PACKAGE) is None


@pytest.mark.parametrize(
    "files, circle",
    [
        ({"a": "from package.b import x", "b": "def f():\n    import package.a"}, {"a", "b"}),
        ({"a": "from package import b", "b": "import package.c", "c": "import package.a"}, "abc"),
        ({"a": "import package.a.x"}, "a"),
        ({"a": "import package.b", "b": "if TYPE_CHECKING:\n    import package.a"}, None),
        (
            {"a": "import package.b\nimport package.c", "b": "from package.c import x", "c": ""},
            None,
        ),
    ],
)
def test_import_circle_is_found(tmp_path, files, circle):
    for name, text in {"__init__": "", **files}.items():
        path = tmp_path / "package" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = import_circle(tmp_path / "package")
    assert found is None if circle is None else set(found) == {f"package.{x}" for x in circle}


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
    # a path to a person's files; the path of a URL has a letter before its slash
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
    unknown = {path.relative_to(ROOT).parts[0] for path in tracked_files} - set(TOP_LEVEL)
    assert not unknown, "a new file or folder at the top: add it to TOP_LEVEL"


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


def pins_of(name):
    lines = (ROOT / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_versions_and_nothing_else(name):
    pins = pins_of(name)
    pin = re.compile(r'[A-Za-z0-9_.-]+==[0-9a-z.]+(; python_version >= "3\.\d+")?')
    assert all(map(pin.fullmatch, pins))
    assert pins == sorted(pins, key=lambda pin: pin.lower().replace("_", "-").split("==")[0])


def test_locks_agree():
    """They are installed into one environment."""
    versions = {}
    for name in LOCKS:
        for pin in pins_of(name):
            package, version = pin.split(";")[0].split("==")
            versions.setdefault(package.lower().replace("_", "-"), set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}
