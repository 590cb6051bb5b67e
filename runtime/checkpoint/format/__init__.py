"""The format of a checkpoint: manifest, tree of state, layout of tensors and shards."""
