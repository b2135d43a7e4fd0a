"""One small file per contender; each runs alone in the virtual environment of its library."""
