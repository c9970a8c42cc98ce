"""Damaged files and wrong arguments, by the thousand: each gives right numbers or a named error."""
