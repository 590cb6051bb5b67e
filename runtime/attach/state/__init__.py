"""The program's state: its variables, objects, passes through data loaders, and files."""
