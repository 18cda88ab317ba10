"""Commands about consumer groups' leases, checkpoints, lag and tables."""
