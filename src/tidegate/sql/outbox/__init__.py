"""Events that transactions publish: stored with the checkpoint, and sent to their hubs by a relay."""
