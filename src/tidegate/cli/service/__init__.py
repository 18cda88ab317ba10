"""Commands that run a service or work on its data directory."""
