"""Quantising: ranges, weights, graphs, accuracy on real data, and what is refused."""
