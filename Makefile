# `make help` names every chore. Nothing is needed but Python 3.10 or later (with its headers) and a C++17 compiler;
# CMake and Ninja come from pip when the machine has none.
#
# What may be overridden: PYTHON (the interpreter the environment is made with), TORCH (what pip installs as torch,
# for example TORCH=torch==2.11.0), PIP_ARGS (for every call of pip), JOBS (compilers at a time), TEST_JOBS (tests at a
# time), LONG (1: tests in their long form), AGAIN (1: what failed in `make test` is run once more, by itself), WERROR
# (1: what is installed is compiled with warnings as errors), TORCH_VERSIONS (of test-torch-versions), FUZZ_SECONDS,
# TORTURE_ROUNDS, VENV_NPU, VENV_FRAMEWORKS.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_VERSIONS ?= 2.3.1 2.6.0 2.9.1
PIP_ARGS ?=
JOBS ?= $(shell nproc)
# Four more than cores: tests of jobs, and of services that are stopped, killed or alone, mostly wait.
TEST_JOBS ?= $(shell echo $$(($(JOBS) < 4 ? $(JOBS) + 4 : 8)))
FUZZ_SECONDS ?= 60
TORTURE_ROUNDS ?= 50
DEMO_OUTPUT ?= out/demo

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
export PATH := $(abspath $(BIN)):$(PATH)
# Tests start some thousand Pythons. Without bytecode of the package, which an installed one has, each compiles it again.
unexport PYTHONDONTWRITEBYTECODE

# torch_npu lives in an environment of its own: where it is installed, `import torch` asks for CANN. The simulator
# stands for that; its operators are compiled against the torch of that environment.
VENV_NPU ?= .venv-npu
PY_NPU := $(VENV_NPU)/bin/python
PIP_NPU := TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(PY_NPU) -m pip --quiet --disable-pip-version-check
CANN := build/simulator/cann
# Both environments have the same Python and, so that they may share one build, the same pybind11.
EDITABLE = install --no-deps --no-build-isolation --config-settings=cmake.define.pybind11_DIR=$$($(PY) -m pybind11 --cmakedir) \
  $(if $(WERROR),--config-settings=cmake.define.MEMSCOPE_WERROR=ON) --editable .
# The build backend also puts the directory above the project on sys.path, for msmemscope.launchers, which needs it not:
# whatever lies beside the project could be imported then, also by the programs that are watched.
ONLY_THE_PROJECT = sed -i '\|^$(abspath ..)$$|d' $(1)/lib/python*/site-packages/_editable_skbc_msmemscope.pth
# The directory of torch, without importing it.
FIND_TORCH := -c 'import importlib.util as i; print(i.find_spec("torch").submodule_search_locations[0])'
ON_NPU = env ASCEND_HOME_PATH=$(abspath $(CANN)) ASCEND_OPP_PATH=$(abspath $(CANN))/opp \
  LD_LIBRARY_PATH=$(abspath $(CANN))/lib64 PYTHONPATH=$(abspath simulator/python) \
  PATH=$(abspath $(VENV_NPU)/bin):$$PATH

# vLLM, verl, Ray and trainers live in an environment of their own, too (some 3 GB), and MindSpore, which wants numpy 1,
# in another (3 GB).
VENV_FRAMEWORKS ?= .venv-frameworks
PY_FRAMEWORKS := $(VENV_FRAMEWORKS)/bin/python
PIP_FRAMEWORKS := $(PY_FRAMEWORKS) -m pip --quiet --disable-pip-version-check
VENV_MINDSPORE ?= .venv-mindspore
PY_MINDSPORE := $(VENV_MINDSPORE)/bin/python
PIP_MINDSPORE := $(PY_MINDSPORE) -m pip --quiet --disable-pip-version-check

# One stamp per content of what is installed: change pyproject.toml, torch or Python and `make setup` runs again.
REQUIREMENTS_HASH := $(shell { cat pyproject.toml; echo '$(TORCH) $(PIP_ARGS)'; $(PYTHON) -VV; } 2>/dev/null | cksum | cut -d' ' -f1)
TOOLS := $(VENV)/requirements-$(REQUIREMENTS_HASH)
TORCH_INSTALLED := $(VENV)/torch-$(REQUIREMENTS_HASH)
INSTALLED := $(VENV)/installed-$(REQUIREMENTS_HASH)
NPU_HASH := $(shell { cat pyproject.toml tests/npu/requirements.txt; echo '$(PIP_ARGS)'; $(PYTHON) -VV; } 2>/dev/null | cksum | cut -d' ' -f1)
NPU_REQUIREMENTS := $(VENV_NPU)/requirements-$(NPU_HASH)
NPU_INSTALLED := $(VENV_NPU)/installed-$(NPU_HASH)

FRAMEWORKS_HASH := $(shell { cat pyproject.toml tests/frameworks/requirements.txt tests/frameworks/install.py; echo '$(TORCH) $(PIP_ARGS)'; $(PYTHON) -VV; } 2>/dev/null | cksum | cut -d' ' -f1)
FRAMEWORKS_REQUIREMENTS := $(VENV_FRAMEWORKS)/requirements-$(FRAMEWORKS_HASH)
FRAMEWORKS_INSTALLED := $(VENV_FRAMEWORKS)/installed-$(FRAMEWORKS_HASH)
MINDSPORE_REQUIREMENTS := $(VENV_MINDSPORE)/requirements-$(FRAMEWORKS_HASH)
MINDSPORE_INSTALLED := $(VENV_MINDSPORE)/installed-$(FRAMEWORKS_HASH)

NATIVE_SOURCES := $(shell find native packaging -type f) CMakeLists.txt
CXX_FORMATTED = $(shell git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.c')
PYTEST_JOBS = $(if $(filter-out 1,$(TEST_JOBS)),-n $(TEST_JOBS) --dist loadgroup)
# What a mark of pytest calls long is left out, unless LONG is set.
FORM = $(if $(LONG),,-m 'not long')
# With so many workers, and more arguments. Where torch_npu cannot be had, they say so.
TEST_NPU = if [ -e $(VENV_NPU)/unavailable ]; then pytest tests/npu; \
  else $(ON_NPU) $(abspath $(PY_NPU)) -m pytest -n $(1) --dist loadgroup -o cache_dir=build/pytest-npu $(FORM) $(2) tests/npu; fi
# What it leaves of the others.
TEST_OTHERS = pytest -n $(1) --dist loadgroup $(FORM) $(2) --ignore tests/npu --ignore tests/frameworks --ignore tests/torch_versions
# Status 1 is that tests failed; where pytest itself did, nothing is on record.
ONCE_MORE = [ $$$(1) != 1 ] || { echo '=== what failed beside other tests, by itself'; $(call $(2),1,-v --last-failed) && $(1)=0 || $(1)=$$?; };
CTEST = ctest --parallel $(TEST_JOBS) --output-on-failure --test-dir
CMAKE_BUILD = cmake --build $(1) --parallel $(JOBS)
NATIVE_TESTS = -DMEMSCOPE_TESTS=ON -DMEMSCOPE_MODULES=OFF -DMEMSCOPE_WERROR=ON
GENERATOR = -G Ninja
# Sanitized code need not be fast, but there is much of it to compile.
SANITIZED = $(NATIVE_TESTS) -DCMAKE_BUILD_TYPE=Sanitized '-DCMAKE_C_FLAGS_SANITIZED=-O1 -g1' '-DCMAKE_CXX_FLAGS_SANITIZED=-O1 -g1'
# `make check` and `make test-native` share a build with warnings as errors. Only the former's has the modules, which
# nobody runs.
CONFIGURE_NATIVE = cmake -S . -B build/native $(GENERATOR) -DMEMSCOPE_WERROR=ON -DMEMSCOPE_TESTS=ON \
  -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF \
  -DPython_EXECUTABLE=$(abspath $(PY)) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir)

##@ Use

.PHONY: help
help: ## list these chores
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) ## make .venv with the package (editable), torch for CPU and the tools for tests and checks

.PHONY: download
download: $(TORCH_INSTALLED) ## of setup what needs no compiler: the tools for checks, and torch

.PHONY: download-npu
download-npu: $(NPU_REQUIREMENTS) ## of setup-npu what needs no compiler: torch_npu and its torch

.PHONY: setup-npu
setup-npu: $(NPU_INSTALLED) ## make .venv-npu with the package, torch_npu and, in build/simulator, a simulated CANN
	@[ -e $(VENV_NPU)/unavailable ] || { set -x; \
	  cmake -S simulator -B build/simulator $(GENERATOR) -DSIMULATOR_TORCH=$$($(PY_NPU) $(FIND_TORCH)); \
	  $(call CMAKE_BUILD,build/simulator); }

.PHONY: demo
demo: setup ## train a small transformer on 4 ranks with two planted leaks, and print the verdict
	@mkdir -p $(DEMO_OUTPUT)
	OMP_NUM_THREADS=1 msmemscope --holders step --output-path $(DEMO_OUTPUT) torchrun --standalone --nproc-per-node 4 examples/leaky_ddp.py

.PHONY: demo-npu
demo-npu: setup-npu ## the same training with the real torch_npu on two simulated NPUs
	@! cat $(VENV_NPU)/unavailable 2>/dev/null
	@mkdir -p $(DEMO_OUTPUT)-npu
	OMP_NUM_THREADS=1 $(ON_NPU) msmemscope --output-path $(DEMO_OUTPUT)-npu torchrun --standalone --nproc-per-node 2 examples/leaky_npu.py

##@ Test

.PHONY: test
test: test-native setup setup-npu ## every test: native, unit, whole jobs, torch_npu; heavy groups in a short form (LONG=1: all)
	@# Those of torch_npu, a third of the work, beside the others: two runs have two ends at which cores idle.
	@others=0; npu=0; set -x; \
	$(call TEST_NPU,$$((($(TEST_JOBS) + 1) / 2))) >build/test-npu.log 2>&1 & beside=$$!; \
	$(call TEST_OTHERS,$$(($(TEST_JOBS) - $(TEST_JOBS) / 4))) || others=$$?; \
	wait $$beside || npu=$$?; cat build/test-npu.log; \
	$(if $(AGAIN),$(call ONCE_MORE,others,TEST_OTHERS) $(call ONCE_MORE,npu,TEST_NPU)) \
	exit $$((others + npu))

.PHONY: test-long
test-long: setup setup-npu ## what `make test` leaves out: other Pythons, more seeds, builds, combinations
	pytest $(PYTEST_JOBS) -m long --hypothesis-profile=default --ignore tests/npu --ignore tests/frameworks --ignore tests/torch_versions
	@[ -e $(VENV_NPU)/unavailable ] || { set -x; $(ON_NPU) $(abspath $(PY_NPU)) -m pytest $(PYTEST_JOBS) -m long tests/npu; }

.PHONY: test-native
test-native: $(TOOLS) ## unit tests of the native part
	$(CONFIGURE_NATIVE) -DMEMSCOPE_MODULES=OFF
	$(call CMAKE_BUILD,build/native)
	$(CTEST) build/native

.PHONY: test-unit
test-unit: setup ## Python tests of single parts
	pytest $(PYTEST_JOBS) $(FORM) tests/unit

.PHONY: test-faults
test-faults: setup ## jobs with known faults, and clean ones: every finding to the byte, and no other
	pytest $(PYTEST_JOBS) $(FORM) tests/faults

.PHONY: test-job
test-job: setup ## tests that run whole jobs: torch, torchrun, agent, aggregator
	pytest $(PYTEST_JOBS) $(FORM) tests/job

.PHONY: test-npu
test-npu: setup setup-npu ## tests with the real torch_npu on the simulator; skipped, with the reason, where it cannot be had
	@set -x; $(call TEST_NPU,$(TEST_JOBS))

.PHONY: test-cuda
test-cuda: setup ## on a machine with a GPU (TORCH=torch for a build with CUDA): a run against torch's own counters, and costs
	pytest tests/cuda
	python benchmarks/operators.py cuda

.PHONY: setup-frameworks
setup-frameworks: $(FRAMEWORKS_INSTALLED) ## make .venv-frameworks with the package, vLLM for CPU, verl, Ray, DeepSpeed, Lightning

.PHONY: test-frameworks
test-frameworks: setup-frameworks ## real frameworks under the tool, on CPU; some 10 minutes, and 5 to install
	PATH=$(abspath $(VENV_FRAMEWORKS)/bin):$$PATH $(PY_FRAMEWORKS) -m pytest tests/frameworks

.PHONY: setup-mindspore
setup-mindspore: $(MINDSPORE_INSTALLED) ## make .venv-mindspore with the package and MindSpore

.PHONY: test-mindspore
test-mindspore: setup-mindspore ## a real MindSpore under msrun under the tool, on CPU; a minute, and 3 to install
	PATH=$(abspath $(VENV_MINDSPORE)/bin):$$PATH $(PY_MINDSPORE) -m pytest tests/frameworks/test_mindspore.py

# Each beside the others, in front of the environment's own torch on the path. The wheels for CPU alone are smaller:
# PIP_ARGS may name an index that has them.
.PHONY: test-torch-versions
test-torch-versions: setup ## operators with other releases of torch (TORCH_VERSIONS), on CPU; up to 5 GB each below build/
	for version in $(TORCH_VERSIONS); do \
	  [ -d build/torch-versions/$$version/torch ] || \
	  { rm -rf build/torch-versions/$$version && $(PIP) install $(PIP_ARGS) --no-compile --target build/torch-versions/$$version torch==$$version; } || exit 1; \
	done
	pytest tests/torch_versions

.PHONY: corpus
corpus: setup ## how often the judge is right about programs whose truth is known, put into docs/verdicts.md; some 10 minutes
	python tests/corpus/evaluate.py --processes $(JOBS) --write docs/verdicts.md

.PHONY: random-jobs
random-jobs: setup ## RANDOM_JOBS (100) random jobs of each kind, whose drifts and pools are known to the byte; tests have a short form
	RANDOM_JOBS=$(or $(RANDOM_JOBS),100) pytest $(PYTEST_JOBS) tests/faults/test_random_pools.py

.PHONY: torture
torture: setup ## TORTURE_ROUNDS (50) of killing every process, filling and deleting the disk at random; tests have a short form
	TORTURE_ROUNDS=$(TORTURE_ROUNDS) pytest $(PYTEST_JOBS) -s tests/torture

.PHONY: test-asan
test-asan: $(TOOLS) ## native tests under AddressSanitizer and UndefinedBehaviorSanitizer
	cmake -S . -B build/asan $(GENERATOR) $(SANITIZED) -DMEMSCOPE_SANITIZE=address,undefined
	$(call CMAKE_BUILD,build/asan)
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(CTEST) build/asan

.PHONY: test-tsan
test-tsan: $(TOOLS) ## native tests under ThreadSanitizer
	cmake -S . -B build/tsan $(GENERATOR) $(SANITIZED) -DMEMSCOPE_SANITIZE=thread
	$(call CMAKE_BUILD,build/tsan)
	TSAN_OPTIONS=halt_on_error=1 $(CTEST) build/tsan

.PHONY: test-aarch64
test-aarch64: $(TOOLS) ## cross-compile the native part for aarch64 and run its tests under qemu-user
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$tool >/dev/null || { \
	  echo "$$tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }; done
	cmake -S . -B build/aarch64 $(GENERATOR) $(NATIVE_TESTS) -DCMAKE_TOOLCHAIN_FILE=tools/aarch64-toolchain.cmake -DMEMSCOPE_CANN_TESTS=OFF
	$(call CMAKE_BUILD,build/aarch64)
	$(CTEST) build/aarch64

.PHONY: test-wheel
test-wheel: $(TOOLS) ## build the wheel, install it into an environment of its own, and look at it
	rm -rf build/wheel build/wheel-venv
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w build/wheel .
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip install --quiet --no-deps build/wheel/*.whl
	cd build && wheel-venv/bin/python ../tools/check_installation.py

##@ Check

.PHONY: check
check: lint types imports generated warnings ## everything below

.PHONY: lint
lint: $(TOOLS) ## ruff and clang-format
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $(CXX_FORMATTED)

.PHONY: types
types: $(TOOLS) ## mypy --strict
	mypy

.PHONY: imports
imports: $(TOOLS) ## who imports whom
	PYTHONPATH=. lint-imports --no-cache

.PHONY: generated
generated: $(TOOLS) ## generated files are what their sources say
	$(PY) tools/generate_vocabulary.py --check
	$(PY) tools/generate_identity.py --check
	if [ -e tools/generate_reference.py ]; then PYTHONPATH=. $(PY) tools/generate_reference.py --check; fi

.PHONY: warnings
warnings: $(TOOLS) ## the whole native part compiles with warnings as errors
	$(CONFIGURE_NATIVE) -DMEMSCOPE_MODULES=ON
	$(call CMAKE_BUILD,build/native)

.PHONY: format
format: $(TOOLS) ## let ruff and clang-format rewrite the sources
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FORMATTED)

##@ Measure and search

.PHONY: bench
bench: setup ## every benchmark; each prints a table of ratios and medians
	cmake -S . -B build/bench $(GENERATOR) $(NATIVE_TESTS) -DCMAKE_BUILD_TYPE=Release
	$(call CMAKE_BUILD,build/bench)
	for program in build/bench/tests/native/*_bench; do echo; echo "== $$program"; "$$program"; done
	for file in benchmarks/*.py; do [ -e "$$file" ] || continue; echo; echo "== $$file"; $(PY) "$$file"; done

.PHONY: fuzz
fuzz: $(TOOLS) ## FUZZ_SECONDS (60) of malformed rings and batches into each reader, under ASan and UBSan
	compiler=$$(command -v clang++ || command -v c++); \
	cmake -S . -B build/fuzz $(GENERATOR) $(NATIVE_TESTS) -DCMAKE_CXX_COMPILER=$$compiler \
	  -DCMAKE_C_COMPILER=$$(command -v clang || command -v cc) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMEMSCOPE_SANITIZE=address,undefined
	$(call CMAKE_BUILD,build/fuzz) --target fuzz_programs
	export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1; \
	for target in build/fuzz/tests/native/*_fuzz; do echo "== $$target"; "$$target" -max_total_time=$(FUZZ_SECONDS) -timeout=20 -artifact_prefix=build/fuzz/; done

##@ Write

.PHONY: vocabulary
vocabulary: ## write msmemscope/vocabulary.py from native/record/record.h, and launchers/identity.inc from contract.py
	$(PYTHON) tools/generate_vocabulary.py
	$(PYTHON) tools/generate_identity.py

.PHONY: docs
docs: $(TOOLS) ## write the generated pages of docs/
	if [ -e tools/generate_reference.py ]; then PYTHONPATH=. $(PY) tools/generate_reference.py; fi

.PHONY: dist
dist: $(TOOLS) ## sdist and wheel in dist/
	rm -rf dist
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	$(PY) -c "import scikit_build_core.build as backend; print(backend.build_sdist('dist'))"

.PHONY: clean
clean: ## remove what was built; .venv stays
	rm -rf build dist out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	rm -f $(VENV)/installed-* $(VENV_NPU)/installed-*

.PHONY: distclean
distclean: clean ## remove the environments too
	rm -rf $(VENV) $(VENV_NPU) $(VENV_FRAMEWORKS) $(VENV_MINDSPORE)

# ---------------------------------------------------------------------------------------------------------------

$(TOOLS):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or later is needed; PYTHON=$(PYTHON) is older" >&2; exit 1; }
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make environments (on Debian: apt-get install python3-venv python3-dev)" >&2; exit 1; }
	rm -f $(VENV)/requirements-* $(VENV)/torch-* $(VENV)/installed-*
	$(PY) tools/print_requirements.py test dev > $(VENV)/requirements.txt
	$(PIP) install $(PIP_ARGS) -r $(VENV)/requirements.txt
	touch $@

$(TORCH_INSTALLED): $(TOOLS)
	rm -f $(VENV)/torch-*
	$(PIP) install $(PIP_ARGS) '$(TORCH)'
	touch $@

# Editable: a change to a .py file needs nothing, a change to native/ an incremental build of seconds.
$(INSTALLED): $(TORCH_INSTALLED) $(NATIVE_SOURCES) Makefile
	$(PIP) $(EDITABLE)
	$(call ONLY_THE_PROJECT,$(VENV))
	touch $@

# A machine that cannot have the wheel still passes `make test`: the tests are skipped with the reason kept here.
$(NPU_REQUIREMENTS): | $(TOOLS)
	@[ -x $(PY_NPU) ] || $(PYTHON) -m venv $(VENV_NPU)
	@rm -f $(VENV_NPU)/requirements-* $(VENV_NPU)/installed-* $(VENV_NPU)/unavailable
	$(PY) tools/print_requirements.py test > $(VENV_NPU)/requirements.txt
	@if $(PIP_NPU) install $(PIP_ARGS) -r tests/npu/requirements.txt -r $(VENV_NPU)/requirements.txt 2> $(VENV_NPU)/pip.log; \
	then touch $@; \
	else { echo -n "torch_npu cannot be installed: "; grep ERROR $(VENV_NPU)/pip.log | tail -1; } | tee $(VENV_NPU)/unavailable; fi

$(NPU_INSTALLED): $(NPU_REQUIREMENTS) $(NATIVE_SOURCES) Makefile
	@[ -e $(VENV_NPU)/unavailable ] || { set -x; \
	  $(PIP_NPU) $(EDITABLE); \
	  $(call ONLY_THE_PROJECT,$(VENV_NPU)); \
	  touch $@; }

$(FRAMEWORKS_REQUIREMENTS): | $(TOOLS)
	@[ -x $(PY_FRAMEWORKS) ] || $(PYTHON) -m venv $(VENV_FRAMEWORKS)
	@rm -f $(VENV_FRAMEWORKS)/requirements-* $(VENV_FRAMEWORKS)/installed-*
	$(PIP_FRAMEWORKS) install $(PIP_ARGS) '$(TORCH)'
	$(PY_FRAMEWORKS) tests/frameworks/install.py $(PIP_ARGS)
	$(PY) tools/print_requirements.py test > $(VENV_FRAMEWORKS)/requirements.txt
	$(PIP_FRAMEWORKS) install $(PIP_ARGS) -r $(VENV_FRAMEWORKS)/requirements.txt
	touch $@

$(FRAMEWORKS_INSTALLED): $(FRAMEWORKS_REQUIREMENTS) $(NATIVE_SOURCES) Makefile
	$(PIP_FRAMEWORKS) $(EDITABLE)
	$(call ONLY_THE_PROJECT,$(VENV_FRAMEWORKS))
	touch $@

$(MINDSPORE_REQUIREMENTS): | $(TOOLS)
	@[ -x $(PY_MINDSPORE) ] || $(PYTHON) -m venv $(VENV_MINDSPORE)
	@rm -f $(VENV_MINDSPORE)/requirements-* $(VENV_MINDSPORE)/installed-*
	$(PY) tools/print_requirements.py numpy1 > $(VENV_MINDSPORE)/requirements.txt
	$(PIP_MINDSPORE) install $(PIP_ARGS) 'mindspore==2.10.0' setuptools pytest -r $(VENV_MINDSPORE)/requirements.txt
	touch $@

$(MINDSPORE_INSTALLED): $(MINDSPORE_REQUIREMENTS) $(NATIVE_SOURCES) Makefile
	$(PIP_MINDSPORE) $(EDITABLE)
	$(call ONLY_THE_PROJECT,$(VENV_MINDSPORE))
	touch $@
