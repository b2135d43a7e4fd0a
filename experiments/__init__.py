"""Experiments: each a command that writes its raw numbers, its table and its pictures."""
