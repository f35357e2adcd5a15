"""Operators that only move elements: copies, shuffles, gathers, scatters."""
