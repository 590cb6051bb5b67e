"""Target `vertex`: custom jobs on Vertex AI. See docs/guides/vertex.md."""
