"""Python -> machine code: builder, expressions, ISA tables, jit, cache. Knows no operator."""
