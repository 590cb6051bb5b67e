"""The store of jobs, attempts and events: its rows, tables, migrations and states."""
