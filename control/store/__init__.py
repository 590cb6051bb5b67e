"""Store of jobs, attempts and events: rows, tables, migrations and states."""
