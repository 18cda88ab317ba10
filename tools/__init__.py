"""What maintainers run on the project's dependencies: checks, an audit, a bill of materials."""
