"""Quantises float models: measures ranges on data, rounds weights, and edits the graph."""
