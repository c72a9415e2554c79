# Every task of the project. A fresh machine needs Python >= 3.10 with its headers, make and a
# C++20 compiler; everything else goes into .venv and build/.

PYTHON ?= python3
NP ?= 2
chaos: MINUTES ?= 60
fuzz: MINUTES ?= 1
SEED ?= 1
FLIPS ?= 1000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
CONSTRAINTS := requirements/constraints.txt
ifeq ($(origin CXX),default)
CXX := c++
endif

# What is compiled, and what a wheel has beside it.
COMPILED := CMakeLists.txt $(shell find engine bindings -type f)
SOURCES := pyproject.toml $(COMPILED) $(shell find src -type f ! -name '*.pyc' ! -name '*.so')
CXX_FILES = $(shell find engine bindings tests -name '*.h' -o -name '*.cc')
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
export CCACHE_BASEDIR ?= $(CURDIR)
endif
CMAKE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
# Ninja would look for the jobserver of `make --jobs`, whose descriptors it does not inherit.
NO_JOBSERVER := env -u MAKEFLAGS
# UNITY=ON compiles eight files as one: the whole takes a third of the time, an edit takes longer.
UNITY ?= OFF
# The extension and the C++ tests have one build: the engine is compiled once for both.
DEV_BUILD := build/dev
# As in wheels, each library has its own libstdc++: what must not pass from one to another is found.
# Fedora and RHEL have libstdc++.a in a package of its own, libstdc++-static.
ifneq ($(findstring /,$(shell $(CXX) -print-file-name=libstdc++.a)),)
LIKE_WHEELS := -static-libstdc++ -Wl,--version-script=$(CURDIR)/tools/exported.map
endif
CMAKE_DEV = $(CMAKE) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	-DCMAKE_MODULE_LINKER_FLAGS="$(LIKE_WHEELS) $(LDFLAGS)" \
	-Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) -DCMAKE_UNITY_BUILD=$(UNITY) -S . -B $(DEV_BUILD)
# More at a time than there are cores: the tests of worlds often wait.
CTEST = $(BIN)/ctest --output-on-failure --timeout 300 --parallel 4 --test-dir

# A stamp is a file that says when something was last put into .venv.
VENV_STAMP := $(VENV)/.made
INSTALL_STAMP := $(VENV)/.installed
BUILD_STAMP := $(VENV)/.built
DEMO_STAMP := $(VENV)/.demo-tools
TEST_STAMP := $(VENV)/.test-tools
# The C++ tests compare the engine with NVIDIA's headers, and give its kernels to NVIDIA's assembler.
NVIDIA := build/nvidia
NVIDIA_STAMP := $(NVIDIA)/.fetched
# Both MPI wheels bring a libmpi: the tests' MPICH has an environment beside the other one.
MPICH_VENV := .venv-mpich
MPICH_STAMP := $(MPICH_VENV)/.made
BENCH_STAMP := $(VENV)/.bench-tools

# The environments beside .venv share one build: little of it depends on their packages. It has the
# options of ours, so that ccache has it.
BESIDE_BUILD := -Cbuild-dir='build/beside-{wheel_tag}' -Ccmake.define.HOROVOD_WERROR=ON
FROM_3_10_TO_3_11 = -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))'
FROM_3_11 = -c 'import sys; sys.exit(sys.version_info < (3, 11))'

# TensorFlow 2.15, the last one with Estimators, has wheels for Python up to 3.11 only, and a NumPy
# of its own: a second environment. What its tests are is what is there of these, less what no
# version of TensorFlow makes a difference for.
LEGACY_VENV := .venv-legacy-tf
LEGACY_PYTHON ?= $(PYTHON)
LEGACY_STAMP := $(LEGACY_VENV)/.built
LEGACY_TESTS = $(wildcard tests/unit/data tests/unit/tensorflow tests/unit/*keras \
	tests/integration/test_tensorflow_examples.py tests/integration/test_tensorflow_failures.py \
	tests/test_parallel_keras.py tests/compatibility/test_names.py) \
	tests/integration/test_compute_service.py::test_ranks_take_turns \
	tests/test_parallel.py::test_on_one_rank \
	tests/test_parallel.py::test_tensorflow_with_xla -k \
	'not (synthetic or progress or demanded or help_tells or readme or restarted or session_reaches or digits_reaches or advanced or served or word2vec)'

# MXNet's last version needs an older NumPy still, and MXNet's tests are these. Those that start jobs
# have a process of their own: one that has loaded MXNet may abort when it forks.
MXNET_VENV := .venv-mxnet
MXNET_PYTHON ?= $(PYTHON)
MXNET_STAMP := $(MXNET_VENV)/.built
MXNET_TESTS = tests/unit/mxnet tests/compatibility/test_names.py
MXNET_JOBS = 'tests/compatibility/test_programs.py::test_programs[mxnet]' $(wildcard tests/integration/test_mxnet_*.py) \
	tests/test_parallel.py::test_mxnet_on_ranks \
	'tests/integration/test_docs.py::test_examples_run_on_two_ranks[mxnet]'

# Spark, Ray and what the estimators need lie on top of .venv: the whole of it is there, too.
ENGINES_VENV := .venv-engines
ENGINES_STAMP := $(ENGINES_VENV)/.made
ENGINES := ray spark estimators lightning trackers torch_distributed

# The site needs neither the project nor a framework: MkDocs reads the sources. Its tests need both.
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.made
MKDOCS = NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 $(DOCS_VENV)/bin/mkdocs

.PHONY: docs test-docs help setup environments demo build check stub check-stub test test-unit quick quick-launch quick-rendezvous quick-rest test-cpp test-parallel test-integration \
	test-alone test-jobs test-hosts test-gpu test-c10d test-legacy-tf test-mxnet test-engines attack chaos fuzz bench sanitize clean \
	tools
.DELETE_ON_ERROR:

help: ## print this list
	@echo "make TARGET   (PYTHON=$(PYTHON), NP=$(NP) ranks for demo and test-parallel)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(BUILD_STAMP) $(DEMO_STAMP) ## train on handwritten digits with NP ranks
	$(BIN)/horovodrun -np $(NP) $(BIN)/python examples/pytorch/digits.py

setup: $(BUILD_STAMP) $(TEST_STAMP) ## make .venv with the project, all frameworks and the test tools

build: $(BUILD_STAMP) ## build the engine and install the project into .venv

check: setup ## format, lint, types, import layers, stub
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@$(MAKE) --no-print-directory check-stub

# The stub says what the extension's functions take and return, for mypy and editors.
STUB := src/horovod/_native.pyi
define write_stub
$(BIN)/python -m nanobind.stubgen -q --exclude-values -m horovod._native -o $(1)
	@$(BIN)/ruff check --silent --fix --exit-zero $(1)
	@$(BIN)/ruff format -q $(1)
endef
stub: $(BUILD_STAMP) $(TEST_STAMP) ## write src/horovod/_native.pyi anew, after an edit of bindings/
	$(call write_stub,$(STUB))

check-stub: $(BUILD_STAMP) $(TEST_STAMP)
	$(call write_stub,build/_native.pyi)
	@diff -u $(STUB) build/_native.pyi || { echo "$(STUB) is out of date: make stub"; exit 1; }

test: test-cpp test-alone test-jobs ## all but test-hosts, -gpu, -docs, -engines, -legacy-tf and -mxnet

# Two halves, which CI runs at one time.
ALONE = tests/unit tests/fuzz tests/compatibility tests/test_parallel.py tests/test_parallel_keras.py
test-alone: setup ## bindings and parts: one process, and bodies on 1 to 3 ranks
	$(BIN)/pytest -p no:cacheprovider $(ALONE)

JOBS = tests/integration tests/elastic
test-jobs: setup $(MPICH_STAMP) ## whole jobs: examples, killed ranks, elastic jobs with faults
	$(BIN)/pytest -p no:cacheprovider $(JOBS)

# What needs no framework: launching, rendezvous, traces, settings and the like. Three processes,
# since tests often wait; less what starts a browser, torchrun or 64 processes.
quick_launch := tests/unit/launch
quick_rendezvous := tests/unit/rendezvous $(addprefix --ignore=tests/unit/rendezvous/,identity/test_torchrun.py test_many_hosts.py)
quick_rest := $(filter-out $(addprefix tests/unit/,common cpp jax keras launch mxnet rendezvous spark support \
	tensorflow torch),$(wildcard tests/unit/*)) tests/fuzz --ignore=tests/unit/trace/report/test_browser.py
quick: $(BUILD_STAMP) $(TEST_STAMP) ## Python tests without frameworks: under a minute after an edit of Python
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target quick-launch quick-rendezvous quick-rest

quick-launch quick-rendezvous quick-rest: quick-%:
	$(BIN)/pytest -q -p no:cacheprovider $(quick_$*)

test-unit: setup test-cpp ## one process: C++ and Python
	$(BIN)/pytest tests/unit

test-parallel: setup ## tests/parallel on NP ranks (make test: on 1 and 3)
	$(BIN)/horovodrun -np $(NP) $(BIN)/python -m pytest -q -p no:cacheprovider tests/parallel

test-integration: setup $(MPICH_STAMP)
	$(BIN)/pytest tests/integration

test-hosts: setup ## several hosts, which are namespaces: needs root, nftables, openssh-server
	$(BIN)/pytest -p no:cacheprovider tests/hosts

test-gpu: setup ## on CUDA GPUs, with a PyTorch in .venv that is built for them; skipped without
	$(BIN)/pytest -p no:cacheprovider tests/gpu

test-c10d: setup ## torch's own tests of process groups, on Gloo and on horovod; C10D: options of compare.py
	$(BIN)/python tests/c10d/compare.py $(C10D)
	$(BIN)/python tests/c10d/compare.py --ranks 3 --today 8 --only-failed

attack: setup ## somebody on the path between two hosts, FLIPS times in each way: needs root
	HOROVOD_TEST_FLIPS=$(FLIPS) $(BIN)/pytest -p no:cacheprovider tests/hosts/test_wire_attacks.py

chaos: setup ## elastic jobs and faults at random, for MINUTES, from SEED on
	$(BIN)/python tests/elastic/chaos.py --minutes $(MINUTES) --seed $(SEED)

# Clang 16 or newer, since std::source_location needs it. -O1 takes half the time of -O3 to compile.
CLANG ?= $(notdir $(firstword $(shell command -v clang++-19 clang++-18 clang++-17 clang++-16 clang++)))
FUZZ_TARGETS = tree_root tree_middle tree_leaf news trace devices link
fuzz: setup ## what decoders get from others, by chance, for MINUTES, under ASan and UBSan: needs Clang
	@printf '%s\n' '#include <source_location>' 'std::source_location where;' \
	  'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' | \
	  $(or $(CLANG),clang++) -std=c++20 -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - \
	  2>/dev/null || { echo "Clang with libFuzzer is missing: sudo apt-get install clang-19" \
	    "libclang-rt-19-dev; CLANG=clang++-16 names another one, from 16 on"; exit 1; }
	$(CMAKE) -DCMAKE_CXX_COMPILER=$(CLANG) -DCMAKE_CXX_FLAGS_RELEASE=-O1 \
	  -DCMAKE_UNITY_BUILD=ON -DHOROVOD_EXTENSION=OFF -DHOROVOD_FUZZ=ON -S . -B build/fuzz
	$(NO_JOBSERVER) $(BIN)/cmake --build build/fuzz
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) $(FUZZ_TARGETS)

test-legacy-tf: ## the TensorFlow and Keras tests on 2.15, the last one with Estimators
	@if $(LEGACY_PYTHON) $(FROM_3_10_TO_3_11); then \
	  $(MAKE) --no-print-directory legacy-tf; \
	else \
	  echo "SKIPPED [1] make test-legacy-tf: TensorFlow 2.15 has no wheel for" \
	    "$$($(LEGACY_PYTHON) --version); LEGACY_PYTHON=python3.11 names another Python"; \
	fi

.PHONY: legacy-tf
legacy-tf: $(LEGACY_STAMP)
	$(LEGACY_VENV)/bin/pytest $(LEGACY_TESTS)

test-mxnet: ## the MXNet tests
	@if $(MXNET_PYTHON) $(FROM_3_10_TO_3_11); then \
	  $(MAKE) --no-print-directory mxnet; \
	else \
	  echo "SKIPPED [1] make test-mxnet: NumPy 1.23, which MXNet needs, has no wheel for" \
	    "$$($(MXNET_PYTHON) --version); MXNET_PYTHON=python3.11 names another Python"; \
	fi

.PHONY: mxnet
mxnet: $(MXNET_STAMP)
	$(MXNET_VENV)/bin/pytest $(MXNET_TESTS)
	$(MXNET_VENV)/bin/pytest $(MXNET_JOBS)

test-engines: setup ## real Spark and Ray clusters on this machine: Spark needs Java 17
	@if $(PYTHON) $(FROM_3_11); then \
	  $(MAKE) --no-print-directory engines; \
	else \
	  echo "SKIPPED [1] make test-engines: Spark 4.3 needs Python 3.11, not" \
	    "$$($(PYTHON) --version)"; \
	fi

# One process for each: what Spark or Ray leaves behind in a process is not the other one's.
.PHONY: engines
engines: $(ENGINES_STAMP)
	@status=0; for name in $(ENGINES); do \
	  $(ENGINES_VENV)/bin/python -m pytest -p no:cacheprovider tests/engines/$$name || status=1; \
	done; \
	$(ENGINES_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/compatibility/test_names.py \
	  -k 'horovod.ray or horovod.spark' || status=1; exit $$status

environments: setup $(DOCS_STAMP) ## make what test-docs, -engines, -legacy-tf and -mxnet run in, where they can run, but for WITHOUT
ifeq ($(filter legacy-tf,$(WITHOUT)),)
	@! $(LEGACY_PYTHON) $(FROM_3_10_TO_3_11) || $(MAKE) --no-print-directory $(LEGACY_STAMP)
endif
ifeq ($(filter mxnet,$(WITHOUT)),)
	@! $(MXNET_PYTHON) $(FROM_3_10_TO_3_11) || $(MAKE) --no-print-directory $(MXNET_STAMP)
endif
	@! $(PYTHON) $(FROM_3_11) || $(MAKE) --no-print-directory $(ENGINES_STAMP)

test-cpp: $(INSTALL_STAMP) build/doctest.flags $(NVIDIA_STAMP) ## the C++ tests
	$(CMAKE_DEV) -DHOROVOD_TESTS=ON -DNVIDIA_DIR=$(CURDIR)/$(NVIDIA)/nvidia $$(cat build/doctest.flags)
	$(NO_JOBSERVER) $(BIN)/cmake --build $(DEV_BUILD) --target engine_tests steady_state
	$(CTEST) $(DEV_BUILD)

sanitize: $(TEST_STAMP) build/doctest.flags ## C++ tests under ASan + UBSan, then under TSan
	@set -e; for kind in asan=address,undefined tsan=thread; do \
	  dir=build/$${kind%%=*}; \
	  $(CMAKE) -DHOROVOD_EXTENSION=OFF -DHOROVOD_TESTS=ON -S . -B $$dir -DHOROVOD_SANITIZE=$${kind#*=} $$(cat build/doctest.flags); \
	  $(NO_JOBSERVER) $(BIN)/cmake --build $$dir; \
	  $(CTEST) $$dir; \
	done

bench: $(BUILD_STAMP) $(BENCH_STAMP) $(ENGINES_STAMP) ## measure against the peers; JSON goes to build/bench
	@mkdir -p build/bench; status=0; \
	for name in collectives grouped training ddp compression startup lifecycle memory \
	    with_tensorflow with_jax many_hosts link_protection slow_networks elastic_recovery observability autotune gpu; do \
	  $(BIN)/python benchmarks/$$name.py --json build/bench/$$name.json || status=1; \
	done; \
	for name in engine_start estimator; do \
	  $(ENGINES_VENV)/bin/python benchmarks/$$name.py --json build/bench/$$name.json || status=1; \
	done; exit $$status

docs: $(DOCS_STAMP) ## build the site into build/site
	$(MKDOCS) build --quiet

test-docs: setup docs ## the site in a browser, and the notebooks
	$(call on_top_of_venv,$(DOCS_VENV))
	$(DOCS_VENV)/bin/python -m pytest -p no:cacheprovider tests/docs

include tools/wheels.mk

clean: ## remove everything that make made, .venv too
	rm -f src/horovod/*.so
	rm -rf build dist $(VENV) $(LEGACY_VENV) $(MXNET_VENV) $(MPICH_VENV) $(ENGINES_VENV) $(WHEELS_VENV) $(DOCS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

tools:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing: sudo apt-get install python3 python3-venv python3-dev"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$$($(PYTHON) --version) is too old, 3.10 is needed: sudo apt-get install" \
	    "python3.11 python3.11-venv python3.11-dev; make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv is missing: sudo apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sysconfig, os; os.stat(sysconfig.get_path("include") + "/Python.h")' \
	  2>/dev/null || { echo "Python.h is missing: sudo apt-get install python3-dev"; exit 1; }
	@echo '#include <concepts>' | $(CXX) -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || { \
	  echo "a C++20 compiler ($(CXX)) is missing: sudo apt-get install g++"; exit 1; }

$(VENV_STAMP): | tools
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The project is installed editable: .venv imports it from src/, where the libraries lie beside the
# Python files. So an edit of Python needs nothing, an edit of C++ compiles what changed. The wheel
# itself is what the environments of test-legacy-tf and test-mxnet have.
$(INSTALL_STAMP): $(VENV_STAMP) pyproject.toml requirements/build.txt $(CONSTRAINTS) | tools
	$(PIP) install -q -c $(CONSTRAINTS) -r requirements/build.txt
	$(PIP) install --no-build-isolation -c $(CONSTRAINTS) -Ceditable.mode=inplace \
	  -Cwheel.cmake=false -Cwheel.py-api=py3 -e '.[pytorch]'
	@touch $@

$(BUILD_STAMP): $(INSTALL_STAMP) $(COMPILED)
	$(CMAKE_DEV)
	$(NO_JOBSERVER) $(BIN)/cmake --build $(DEV_BUILD) --target extension
	$(BIN)/cmake --install $(DEV_BUILD) --component extension --prefix src
	@touch $@

$(LEGACY_STAMP): $(SOURCES) requirements/build.txt requirements/legacy-tf.txt $(CONSTRAINTS) | tools
	$(LEGACY_PYTHON) -m venv $(LEGACY_VENV)
	$(LEGACY_VENV)/bin/pip --disable-pip-version-check install -q -r requirements/legacy-tf.txt
	$(LEGACY_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) \
	  -r requirements/build.txt
	$(NO_JOBSERVER) PATH=$(CURDIR)/$(LEGACY_VENV)/bin:$$PATH $(LEGACY_VENV)/bin/pip --disable-pip-version-check \
	  install --no-build-isolation $(BESIDE_BUILD) .
	@touch $@

$(MXNET_STAMP): $(SOURCES) requirements/build.txt requirements/mxnet.txt $(CONSTRAINTS) | tools
	$(MXNET_PYTHON) -m venv $(MXNET_VENV)
	$(MXNET_VENV)/bin/pip --disable-pip-version-check install -q -r requirements/mxnet.txt
	$(MXNET_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) \
	  -r requirements/build.txt
	$(NO_JOBSERVER) PATH=$(CURDIR)/$(MXNET_VENV)/bin:$$PATH $(MXNET_VENV)/bin/pip --disable-pip-version-check \
	  install --no-build-isolation $(BESIDE_BUILD) .
	@touch $@

$(DEMO_STAMP): $(VENV_STAMP) requirements/demo.txt $(CONSTRAINTS)
	$(PIP) install -q -c $(CONSTRAINTS) -r requirements/demo.txt
	@touch $@

$(TEST_STAMP): $(VENV_STAMP) requirements/build.txt requirements/test.txt requirements/demo.txt $(CONSTRAINTS) | $(INSTALL_STAMP)
	$(PIP) install -q -c $(CONSTRAINTS) -r requirements/build.txt -r requirements/test.txt
	@touch $@

# What .venv has, a second environment has, too: its packages, and those that it has editable.
define on_top_of_venv
$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' > \
	  $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth
endef

$(MPICH_STAMP): $(TEST_STAMP) $(CONSTRAINTS)
	$(PYTHON) -m venv $(MPICH_VENV)
	$(MPICH_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) mpi4py mpich
	$(call on_top_of_venv,$(MPICH_VENV))
	@touch $@

$(ENGINES_STAMP): $(TEST_STAMP) requirements/engines.txt $(CONSTRAINTS)
	$(PYTHON) -m venv $(ENGINES_VENV)
	$(call on_top_of_venv,$(ENGINES_VENV))
	$(ENGINES_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) \
	  -r requirements/engines.txt
	@touch $@

$(DOCS_STAMP): requirements/docs.txt $(CONSTRAINTS)
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) -r requirements/docs.txt
	@touch $@

$(BENCH_STAMP): $(VENV_STAMP) requirements/bench.txt $(CONSTRAINTS)
	$(PIP) install -q -c $(CONSTRAINTS) -r requirements/bench.txt
	@# mpi4jax is compiled by Open MPI's compiler; for CUDA too, unless it finds an nvcc without any.
	@mkdir -p build/no-cuda/bin && ln -sf "$$(command -v false)" build/no-cuda/bin/nvcc
	PATH=$(CURDIR)/build/no-cuda/bin:$(CURDIR)/$(BIN):$$PATH $(PIP) install -q -c $(CONSTRAINTS) mpi4jax \
	  || echo "mpi4jax does not install here: with_jax.py leaves it out"
	@touch $@

# Out of NVIDIA's wheels, 240 MB; the libraries among them are not needed.
$(NVIDIA_STAMP): requirements/nvidia.txt | $(VENV_STAMP)
	@rm -rf $(NVIDIA)
	$(PIP) install -q --no-deps --no-compile --only-binary=:all: --target $(NVIDIA) -r $<
	@rm -rf $(NVIDIA)/nvidia/*/lib $(NVIDIA)/nvidia/cu13/nvvm
	@touch $@

# The C++ tests need doctest's header: the system's, else out of Debian's package, without root.
build/doctest.flags:
	@mkdir -p build/doctest
	@if echo '#include <doctest/doctest.h>' | $(CXX) -x c++ -fsyntax-only - 2>/dev/null; then \
	  : > $@; \
	elif (cd build/doctest && apt-get download doctest-dev && dpkg-deb -x doctest-dev_*.deb .) \
	    >/dev/null 2>&1; then \
	  echo "-DDOCTEST_INCLUDE_DIR=$(CURDIR)/build/doctest/usr/include" > $@; \
	else \
	  echo "doctest's header is missing: sudo apt-get install doctest-dev"; exit 1; \
	fi
