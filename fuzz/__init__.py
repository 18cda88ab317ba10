"""Corpora of what peers send, and their replay by the ordinary test run."""
