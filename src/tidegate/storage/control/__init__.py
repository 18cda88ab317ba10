"""The control log of the file engine: its records, its two files, and their repair. Nothing about events."""
