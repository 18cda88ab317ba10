"""Reading capture files, as a table and in front of a hub's stream."""
