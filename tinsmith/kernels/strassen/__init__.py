"""Strassen's algorithm, Winograd's variant: seven products of quarters for the work of eight."""
