"""Custom jobs on Vertex AI: see docs/guides/vertex.md."""
