"""Decisions without I/O: events and numbers in, answers out."""
