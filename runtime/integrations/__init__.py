"""Integrations that make the training loops of Keras, Lightning, Transformers and Accelerate resumable.

A program needs one changed line. Each module imports only its framework. See docs/guides/integrations.md.
"""
