"""Shared memory, wake-ups and channels between processes of one host."""
