"""No-code ways in: the loops of Keras, Lightning, Transformers and Accelerate made resumable by one line each.

Each module imports its framework, and only its own. See docs/guides/integrations.md.
"""
