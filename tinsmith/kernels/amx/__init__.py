"""Convolutions and products in split precision on matrix registers."""
