"""What travels between hosts: bytes in, checked values out. Nothing in here opens a socket, and nothing is pickled."""
