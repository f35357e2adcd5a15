"""Operators that only move elements: all are strided copies."""
