"""Random damage to the files of real logs: nothing is lost in silence, nothing altered is served.

Run as ``make damage N=3000`` or ``python -m tests.storage.damage --cases 3000 [--seed S] [--case K]``.
``worlds`` makes the logs, ``kinds`` damages them, ``oracle`` says what is wrong.
"""
