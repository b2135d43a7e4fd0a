"""A memory of what was played, and what learners that learn from it share.

What holds the data (`transitions`, `sequences` and below) knows arrays only, no torch.
"""
