"""For users' tests: a real hub in a thread or in a process, faults on demand, and the suite for stores."""
