"""Resources of a launch other than machines, and a cache of its machines."""
