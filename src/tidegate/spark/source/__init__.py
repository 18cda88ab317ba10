"""Reads an event hub: options, positions, offsets, columns and readers."""
