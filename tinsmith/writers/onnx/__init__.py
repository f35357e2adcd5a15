"""The ONNX writer: rows say how each operator is written, `model` writes a whole graph."""
