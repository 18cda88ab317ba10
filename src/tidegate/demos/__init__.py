"""The runnable examples that the README shows: real data, real processes, figures that must hold to the
row."""
