"""Python -> machine code: builder, expressions, instruction sets, LLVM, cache. Knows no
operator."""
