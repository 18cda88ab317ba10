"""What tests of several folders share and no fixture of ``tests/conftest`` gives: clocks that tests set.

What one folder's tests share is in its own ``conftest`` and ``support``; what users' tests need is in
``tidegate.testing``.
"""
