"""Winograd convolutions: fewer multiplications for more additions, for any tile and kernel size."""
