"""What tests of several folders share: clocks that tests set.

What one folder's tests share is in its own ``conftest`` and ``support``; what users' tests need is in
``tidegate.testing``.
"""
