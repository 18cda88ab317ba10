"""Checks that a table holds exactly what the log, the dead letters and the checkpoints imply."""
