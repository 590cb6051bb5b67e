"""Configuration of cloudgpu: defaults of job files and settings, in the user's file and in a project's
pyproject.toml."""
