"""Graph -> model files. One module or package a format, found by listing this folder."""
