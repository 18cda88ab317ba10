"""Capture: a reader of the broker that writes each hub's events as Avro files to a destination.

The rule: the log is the only buffer. Nothing here holds events that would have to be flushed, and what a file
holds is decided durably before the file is written.
"""

from tidegate.capture.service import CaptureService

__all__ = ["CaptureService"]
