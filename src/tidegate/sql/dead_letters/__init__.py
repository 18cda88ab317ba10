"""Dead letters after their commit: list, show, redrive, discard."""
