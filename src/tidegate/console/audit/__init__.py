"""``/audit``: who changed what, and who signed in."""
