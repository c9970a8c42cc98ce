"""RoFormer, the Transformer with rotary position embedding, for TensorFlow and Keras 3.

Paper: https://arxiv.org/abs/2104.09864
"""

import importlib
import sys

from roformer_tf import startup

__version__ = "0.2.0"

# Loaded on first use, see `startup`.
_MODULES = {
    name: module
    for module, names in startup.LAZY.items()
    for name in names
    if name.startswith("RoFormer")
}
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})


if sys.argv[:1] != ["-m"]:  # `python -m roformer_tf --help` answers without Keras
    startup.start()
