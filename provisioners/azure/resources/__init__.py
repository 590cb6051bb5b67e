"""Resources of a launch beside its machines, and which machines there are."""
