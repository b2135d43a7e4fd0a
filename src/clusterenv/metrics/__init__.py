"""What a run measures: the names, and where the numbers go."""
