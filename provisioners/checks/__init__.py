"""Read-only checks of what a target needs from this computer: types, and the checks that several targets share."""
