"""The database, its tables, and the one transaction that all of ``tidegate.sql`` commits through."""
