"""Kernels that slide a window: convolutions of every kind and pooling, on blocked or plain data."""
