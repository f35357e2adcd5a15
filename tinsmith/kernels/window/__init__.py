"""Kernels that slide a window: convolutions of every kind, and pooling, on channel-blocked data."""
