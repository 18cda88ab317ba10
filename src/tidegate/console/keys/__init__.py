"""Policies, their connection strings, and programs that use them."""
