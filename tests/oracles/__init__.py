"""References for tests: bert4keras in a separate process, and plain float64 NumPy."""
