"""Python -> machine code: builder, expressions, ISA tables, jit, object cache. Knows no operator."""
