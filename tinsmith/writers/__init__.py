"""Graphs -> the files of other engines. One package a format."""
