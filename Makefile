# `make demo` and `make test` make the environment themselves; nothing else needs to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DEMO := $(VENV)/.demo-ready
DOCS := $(VENV)/.docs-ready
WORKERS ?= 6
# mpi4py is useful only where there is an Open MPI, and harms Lightning where there is none.
EXTRAS := dev,docs,torch$(if $(shell command -v mpirun),$(shell echo ,mpi))

# uv installs five times as fast as pip, which is used where uv cannot be had. uv does not read pip's configuration, so
# an index that pip is configured with is passed on.
define INSTALL
install() { \
    $(BIN)/pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt uv || \
        { $(BIN)/pip install --quiet --disable-pip-version-check "$$@"; return; }; \
    index=$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null)}}; \
    $${index:+env UV_DEFAULT_INDEX="$$index"} $(BIN)/uv pip install --quiet --python $(BIN)/python "$$@"; \
}; install
endef

.PHONY: env demo docs dist test engines test-engines image-test lint types bench clean

env: $(STAMP)

$(STAMP): pyproject.toml tests/constraints.txt tests/standins/azurite/package-lock.json
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint tests/constraints.txt --editable '.[$(EXTRAS)]'
	# mypy reads the root as the package `cloudgpu` through this link, whatever the checkout's folder is called.
	mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/cloudgpu
	# Blob Storage's emulator, for tests that skip without it.
	cd tests/standins/azurite && npm ci --no-audit --no-fund --silent || echo "no Azurite: its tests are skipped" >&2
	touch $@

# The demo's environment is small: the package, torch, and scikit-learn for its data. `make env` completes it.
demo: $(if $(wildcard $(STAMP)),env,$(DEMO))
	$(BIN)/python examples/digits/demo.py

$(DEMO): pyproject.toml tests/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint tests/constraints.txt --editable '.[torch]' scikit-learn
	touch $@

# The documentation's site, in build/site; a broken link fails. Its environment is small: the package and MkDocs.
docs: $(if $(wildcard $(STAMP)),env,$(DOCS))
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

$(DOCS): pyproject.toml tests/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint tests/constraints.txt --editable '.[docs]'
	touch $@

# Several files at once, for most tests wait for something, in the order that tests/conftest.py gives them.
# `make test ARGS="-n0 --pdb"`: one test after the other.
test: env
	PATH="$$(tests/engines/build.sh --path)$$PATH" \
	$(BIN)/python -m pytest -m "not engine" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Real engines that are built rather than installed, into a cache outside of the checkout; only what is not there yet.
engines:
	tests/engines/build.sh

# The tests that need them, which `make test` leaves out; one by one, for a few files have most of them.
test-engines: env engines
	PATH="$$(tests/engines/build.sh --path)$$PATH" \
	$(BIN)/python -m pytest -m engine -n $(WORKERS) --dist load --maxschedchunk 1 $(ARGS)

# The image, built and run for real; as root it installs podman and mmdebstrap where they are missing (Debian).
image-test: env
	tests/image/prepare.sh build/image
	CLOUDGPU_IMAGE_BASE=$(CURDIR)/build/image/base.tar $(BIN)/python -m pytest tests/integration/test_image.py

# The release of the current commit, the same bytes on every computer: wheel, sdist, image contexts, checksums.
dist: env
	$(BIN)/python -m tools.dist dist $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.prose

types: env
	cd $(VENV)/src && ../bin/mypy --config-file cloudgpu/pyproject.toml -p cloudgpu

bench: env
	$(BIN)/python -m tests.bench $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
