"""Commands that send and show events."""
