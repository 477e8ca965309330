"""The net of one base as a graph: operators that are checked one by one, and a file for ONNX Runtime made of them."""
