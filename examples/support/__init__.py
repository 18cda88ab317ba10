"""What the larger examples share: nothing here depends on an example.

command    options, exit codes, signals, tables and JSON of an example's command line
journal    reads where Spark's micro-batches end
processes  starts, crashes and ends child processes with all their descendants
screen     steps, a progress bar and notes, as users see them
service    ``tidegate serve`` as a child process
"""
