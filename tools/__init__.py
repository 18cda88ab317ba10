"""Tools for maintainers: dependency checks, an audit, a bill of materials, the reference pages."""
