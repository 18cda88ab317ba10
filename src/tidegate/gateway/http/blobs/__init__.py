"""Blob Storage's REST interface, as far as official processors use it: signatures, the table of operations,
and answers. What blobs are is in ``broker.blobs``.
"""
