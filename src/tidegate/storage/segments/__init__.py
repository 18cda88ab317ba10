"""The segments of a log: their format, and reading them."""
