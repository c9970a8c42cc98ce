"""What the tests compare with: bert4keras itself in a process of its own, and plain NumPy in float64."""

from tests.oracles.run_original import Original

__all__ = ["Original"]
