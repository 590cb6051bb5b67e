"""Resources of a launch (network, identity, groups), and the cached listing of machines."""
