"""Integrations that make the training loops of Keras, Lightning, Transformers and Accelerate resumable.

Each needs one changed line in the program. Each module imports only its own framework. See docs/guides/integrations.md.
"""
