"""Graph -> ncnn's files. `writer` has whole graphs, `layers` each operator."""

from tinsmith.writers.ncnn.writer import write as write
