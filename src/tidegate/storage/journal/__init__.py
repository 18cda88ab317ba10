"""The journal of a data directory: what small rounds have appended to many partitions, with one sync for all.

``records`` has the bytes of a file, ``reading`` what a start finds in the two files, ``replay`` what follows
from that for the logs, ``journal`` the one in use. Nothing here decides whether a log is damaged: a replay
changes files, or shows them as if they were changed, and ``examination`` looks at the result.
"""
