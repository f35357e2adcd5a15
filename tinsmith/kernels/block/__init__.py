"""Several convolutions as one kernel, with what lies between them kept in the core's cache."""
