# make demo: the whole way on this machine.   make test: every test, the fast ones first.
# Both set up .venv by themselves, with the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests that share a file stay on one of pytest's workers (tests/conftest.py).
CORES := $(shell $(PYTHON) -c 'import os; print(max(2, min(8, len(os.sched_getaffinity(0)))))')
WORKERS := -n $(CORES) --no-loadscope-reorder
# Half of a slow test's time is waiting: for a rank's end, a lease, a timeout, a compilation.
MORE := -n $(shell expr $(CORES) + 1) --no-loadscope-reorder

# A Python that may write no bytecode compiles everything anew, in each of pytest's workers and in all that they start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test fast slow check mutate older picture wheel clean

demo: $(VENV)/.train
	$(BIN)/muster demo

test: fast slow

fast: $(VENV)/.dev
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -q $(WORKERS) tests/unit tests/property tests/golden

# Last, one after the other, those that measure time or look for a busy machine.
slow: $(VENV)/.dev $(VENV)/.adam
	$(BIN)/python -m pytest -q $(MORE) -m "not alone" --durations=30 tests/processes tests/real tests/cluster
	$(BIN)/python -m pytest -q -m alone tests/processes tests/real tests/cluster

check: $(VENV)/.dev
	$(BIN)/ruff check src tests dev benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

# Small changes of the pure rooms, and those of them that no test notices. It runs each room's tests once per change.
mutate: $(VENV)/.dev
	$(BIN)/python dev/mutate.py --seed $(shell date +%V) > dev/survivors.txt

# What ranks run, with older versions that a machine with GPUs was met with. About 40 minutes on two cores.
OLDER := torch==2.11.0 transformers==5.17.0
OTHERS := torch|torchao|transformers|tokenizers|safetensors|huggingface_hub|setuptools|triton|nvidia-[a-z0-9-]*
older: $(VENV)/.dev
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-older
	grep -vE '^($(OTHERS))==' constraints.txt > .venv-older/constraints.txt
	$(BIN)/uv pip install --quiet --python .venv-older/bin/python -c .venv-older/constraints.txt $(OLDER) \
	  setuptools wheel ninja hjson einops msgpack py-cpuinfo psutil tqdm numpy pydantic packaging
	DS_BUILD_OPS=0 $(BIN)/uv pip install --quiet --no-build-isolation-package deepspeed \
	  --python .venv-older/bin/python -c .venv-older/constraints.txt $(OLDER) --editable '.[train,dev]'
	.venv-older/bin/python -m pytest -q $(MORE) -m "not alone" tests/unit tests/real

# The picture in the README: a run of the demo, and Chromium.
picture: $(VENV)/.train
	$(BIN)/python dev/report_picture.py

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --outdir dist .

$(VENV)/.train: dev/install.py pyproject.toml constraints.txt
	$(PYTHON) dev/install.py train
	touch $@

$(VENV)/.dev: dev/install.py pyproject.toml constraints.txt
	$(PYTHON) dev/install.py train fp8 dev
	touch $@ $(VENV)/.train

# DeepSpeed compiles its Adam for CPUs at first use, most of a minute: once, before jobs would wait for it. It
# waits for ever at the lock of a build that was killed, so such a lock is removed before.
$(VENV)/.adam: $(VENV)/.train
	-$(BIN)/python -c \
	  'from muster.worker.locks import extensions_folder, stale_locks; [*stale_locks(extensions_folder())]'
	-MAX_JOBS=1 DS_ACCELERATOR=cpu $(BIN)/python -c \
	  'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load(verbose=False)' >/dev/null \
	  && touch $@

clean:
	rm -rf $(VENV) .venv-older dist build
