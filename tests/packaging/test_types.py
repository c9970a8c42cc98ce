"""Type checkers and editors see the public surface."""

import ast
import shutil
import sys
from pathlib import Path

import pytest

import roformer_tf
from roformer_tf import startup
from tests.processes import run_program


def test_lazy_names_are_declared(repository):
    """What is loaded on first use is imported for type checkers, and nothing else."""
    source = (repository / "roformer_tf" / "__init__.py").read_text(encoding="utf-8")
    [block] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    declared = {
        (node.module, alias.name)
        for node in block.body
        for alias in node.names
        if node.module != "roformer_tf"
    }
    lazy = {
        (module, name)
        for module, names in startup.LAZY.items()
        for name in names
        if name.startswith("RoFormer") and module != "roformer_tf.layers"
    }
    assert declared == lazy
    assert roformer_tf.__all__ == sorted(name for _, name in lazy)
    assert (repository / "roformer_tf" / "py.typed").exists()


@pytest.mark.slow
def test_pyright_accepts_the_public_surface(repository):
    pyright = shutil.which("pyright", path=Path(sys.executable).parent) or shutil.which("pyright")
    if pyright is None:
        pytest.skip("needs pyright: `make types` installs it")
    command = [pyright, "--project", repository, "--pythonpath", sys.executable]
    run_program(*command, cwd=repository)
