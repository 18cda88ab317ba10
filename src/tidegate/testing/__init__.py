"""What Tidegate is tested with, for users' tests, too: a real hub in a thread or in a process."""
