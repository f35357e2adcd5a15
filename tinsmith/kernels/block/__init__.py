"""Several convolutions as one kernel, with the tensors between them kept in the core's cache."""
