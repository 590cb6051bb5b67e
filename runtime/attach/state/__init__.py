"""The program's state: variables, objects, passes through loaders, and files."""
