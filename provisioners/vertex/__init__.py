"""Custom jobs on Vertex AI: see docs/vertex.md."""
