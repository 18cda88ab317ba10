"""What the larger examples share: nothing here depends on an example.

command    options, exit codes, signals, tables and JSON of an example's command line
journal    reads where Spark's micro-batches end
observer   how an example reports its progress
processes  starts, freezes and ends child processes with all their descendants
screen     draws what an observer receives
service    ``tidegate serve`` as a child process
"""
