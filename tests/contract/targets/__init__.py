"""The stand-ins of the suite of provisioners: a module for each target."""
