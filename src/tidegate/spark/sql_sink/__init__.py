"""The exactly-once SQL sink of a pipeline: its commits, its writing tasks and its drivers."""
