"""What a user writes with the public API of Tidegate."""
