"""``/consumers``: leases, checkpoints and lag of consumer groups; moves of checkpoints."""
