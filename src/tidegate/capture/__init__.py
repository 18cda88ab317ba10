"""Capture: a reader of the broker that writes each hub's events as Avro files to a destination.

The log is the only buffer. Nothing here holds events that would have to be flushed, and the content of a file
is decided durably before the file is written.
"""

from tidegate.capture.service import CaptureService

__all__ = ["CaptureService"]
