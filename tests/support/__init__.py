"""What tests of several folders share and no fixture of ``tests/conftest`` provides: clocks that tests set,
and servers that run for tests (Azurite, PostgreSQL, a Spark cluster).

What one folder's tests share is in its own ``conftest`` and ``support``; what users' tests need is in
``tidegate.testing``.
"""
