"""Fuzz targets: every decoder of bytes or text that comes from outside."""
