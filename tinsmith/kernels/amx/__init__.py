"""Convolutions and products on matrix registers: float32 as the sum of two bfloat16."""
