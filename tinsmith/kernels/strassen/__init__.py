"""Strassen's algorithm in Winograd's variant: seven products of quarters instead of eight."""
