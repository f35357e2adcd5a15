"""BLAKE2b without OpenSSL, which `hashlib` loads: that takes 2 ms and 5 MB of every start."""

try:
    from _blake2 import blake2b
except ImportError:  # not CPython, or one built without it
    from hashlib import blake2b

__all__ = ["blake2b"]
