"""What maintainers run: checks of dependencies, an audit, a bill of materials, the reference pages."""
