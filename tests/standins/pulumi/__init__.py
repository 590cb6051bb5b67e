"""What Pulumi programs are tested with where there is neither a cloud nor Pulumi. See tests/standins/README.md.

| module | what |
|---|---|
| `engines.py` | the fixture `engine`: the double, and the real `pulumi` where it is on PATH |
| `double/` | the double of the engine and of the command `pulumi`; `install(folder)` |
| `mocks.py`, `hints.py` | `run_strict(program) -> list[Registered]`, `only(registered, type)`, `exports(registered)` |
| `provider.py` | how a stand-in for a provider is written: `Kind`, `Made`, `AllBut`, `Provider`, … |
| `serving.py` | `attached(provider)`, `install(folder, name)`, `load(name)`; MODULES names each cloud's |
| `aws/`, `gcp.py`, `azure.py` | `provider() -> Provider`, on the cloud's stand-in that the environment points to |
| `wire.py`, `changes.py` | values of the protocol; what differs between two sets of properties |
"""
