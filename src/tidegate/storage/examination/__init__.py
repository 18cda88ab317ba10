"""Looks at a partition's files and says what is damaged; it changes nothing.

``examiner.examine`` is the entrance, ``findings`` its result, ``walk`` reads one file. What may be done about
it is decided by ``recovery`` (a start) and ``check``.
"""
