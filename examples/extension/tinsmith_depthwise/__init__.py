"""Depthwise convolutions by another kernel, and differences of negatives as sums."""
