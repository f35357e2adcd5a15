"""The ONNX writer: rows write each operator, `model` writes a whole graph."""
