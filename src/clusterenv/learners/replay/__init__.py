"""A memory of what was played, and what learners that learn from it share."""
