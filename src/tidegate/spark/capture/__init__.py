"""Reads capture files, as a table and ahead of a hub's stream."""
