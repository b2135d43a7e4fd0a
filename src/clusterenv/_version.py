"""The version of the library, where everything can read it."""

__version__ = "0.1.0"
