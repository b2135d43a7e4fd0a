"""Policies that act on workers: what they promise, how they act, how they travel."""
