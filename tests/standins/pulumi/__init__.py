"""Test doubles for Pulumi programs, for use without a cloud and without Pulumi. See tests/standins/README.md.

| module | content |
|---|---|
| `engines.py` | the fixture `engine`: the double, and the real `pulumi` where it is on PATH |
| `double/` | the double of the engine and of the command `pulumi`; `install(folder)` |
| `mocks.py`, `hints.py` | `run_strict(program) -> list[Registered]`, `only(registered, type)`, `exports(registered)` |
| `provider.py` | base classes of provider stand-ins: `Kind`, `Made`, `AllBut`, `Provider`, … |
| `serving.py` | `attached(provider)`, `install(folder, name)`, `load(name)`; MODULES: each cloud's module |
| `aws/`, `gcp.py`, `azure.py` | `provider() -> Provider`, for the cloud's stand-in that the environment points to |
| `wire.py`, `changes.py` | values of the protocol; differences between two sets of properties |
"""
