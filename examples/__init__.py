"""Programs that users could write with Tidegate's public API."""
