"""The administration as one table, whichever protocol asks: operations, and shapes of what goes in and out.

Nothing of a protocol: addresses are templates, values are plain.
"""
