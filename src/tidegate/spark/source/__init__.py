"""Reading an event hub: options, positions, offsets, columns and the readers."""
