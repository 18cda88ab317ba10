"""The source that applies a function to events in the worker that reads them."""
