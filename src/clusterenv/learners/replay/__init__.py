"""Memories of steps that are learned from more than once: transitions and sequences, uniform or by priority.

Arrays only: nothing in the data part of this package knows torch.
"""
