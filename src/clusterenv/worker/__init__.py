"""The worker process and its block of environments."""
