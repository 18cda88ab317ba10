"""For users' tests: a real hub in a thread or process, fault injection, and a test suite for stores."""
