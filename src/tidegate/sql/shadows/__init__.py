"""Shadows: the next version of a pipeline beside the live one, its difference, and the swap of the two."""
