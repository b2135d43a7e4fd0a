"""How bytes move: shared memory, wake-ups and channels on one host; sockets and keys between hosts."""
