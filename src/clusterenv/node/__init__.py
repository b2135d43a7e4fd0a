"""One host: its workers, their supervision, and how the head reaches them."""
