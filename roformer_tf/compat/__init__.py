"""Runs programs that were written for other packages, under the names that they use."""
