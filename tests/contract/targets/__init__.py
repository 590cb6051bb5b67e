"""Stand-ins for the provisioners' contract tests, a module for each target."""
