"""What the larger examples share: nothing here knows an example.

command    options, exit codes, signals, tables and JSON of an example's command line
journal    reads where Spark's micro-batches end
observer   how an example tells how far it is
processes  starts, freezes and ends child processes with all their descendants
screen     draws what an observer is told
service    ``tidegate serve`` as a child process
"""
