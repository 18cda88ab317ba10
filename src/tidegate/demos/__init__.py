"""A runnable example: real processes, and figures that must hold to the row.

observer   how a demo tells whoever watches how far it is
processes  starting, freezing and ending whole process sessions
service    the service, a process of its own

home_security  100,000 homes: state, timers, aggregates, alarms
"""
