"""Every public name has a docstring with an example.

pytest runs the examples: `--doctest-modules` over roformer_tf (pyproject.toml).
"""

import importlib
import pkgutil

import pytest

import roformer_tf


def public_names():
    """Yields (`package.name`, object) of every `__all__` in roformer_tf and its subpackages."""
    packages = [roformer_tf] + [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(roformer_tf.__path__, "roformer_tf.")
        if module.ispkg or module.name == "roformer_tf.rotary"
    ]
    for package in packages:
        for name in getattr(package, "__all__", []):
            yield f"{package.__name__}.{name}", getattr(package, name)


@pytest.mark.parametrize("value", [pytest.param(v, id=name) for name, v in public_names()])
def test_public_name_has_a_docstring_with_an_example(value):
    if not callable(value):
        return  # a constant or a module has its comment where it is defined
    assert value.__doc__, "no docstring of its own"
    assert ">>> " in value.__doc__, "no example (>>>) in the docstring"
    assert value.__module__.startswith("roformer_tf"), "its example does not run"
