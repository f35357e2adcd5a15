"""Graph -> ncnn's files. `writer` has whole graphs, the other modules a function for each operator."""

from tinsmith.writers.ncnn.writer import write as write
