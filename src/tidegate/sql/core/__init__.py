"""The database, its tables, and the transaction through which all of ``tidegate.sql`` commits."""
