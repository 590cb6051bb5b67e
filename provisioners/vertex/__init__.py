"""Target `vertex`: custom jobs on Vertex AI. See docs/vertex.md."""
