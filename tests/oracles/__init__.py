"""References for tests: bert4keras in a separate process, and plain float64 NumPy."""

from tests.oracles.run_original import Original

__all__ = ["Original"]
