"""Convolutions and products on matrix registers: floats in split precision, and bytes."""
