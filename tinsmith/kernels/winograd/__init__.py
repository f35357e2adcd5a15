"""Winograd convolutions: fewer multiplications for more additions, in tiles of many sizes."""
