"""Writes graphs as model files: one module or package for each format, found by listing this
folder."""
