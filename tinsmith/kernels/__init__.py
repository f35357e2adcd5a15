"""How operators are computed on the cpu: one row of one table for each kernel. See `_kernel`."""
