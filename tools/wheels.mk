# What is released, and what releases it.

# The last one makes the wheel of the stable ABI, for itself and all newer ones.
WHEEL_PYTHONS ?= 3.10 3.11 3.12
WHEEL_ARCHITECTURES ?= x86_64 aarch64
WHEELS ?= dist/*.whl
WHEEL_EXAMPLES ?=
WHEELS_VENV := .venv-wheels
WHEELS_STAMP := $(WHEELS_VENV)/.made

.PHONY: wheels test-wheels wheel-packages ci
wheels: $(WHEELS_STAMP) ## build wheels for WHEEL_PYTHONS and WHEEL_ARCHITECTURES and the sdist into dist
	$(NO_JOBSERVER) $(WHEELS_VENV)/bin/python tools/wheels.py --pythons $(WHEEL_PYTHONS) \
	  --architectures $(WHEEL_ARCHITECTURES) --output dist

test-wheels: $(WHEELS_STAMP) ## install the WHEELS that run here, and run them, and WHEEL_EXAMPLES, on two ranks
	$(WHEELS_VENV)/bin/python tools/try_wheels.py $(sort $(wildcard $(WHEELS))) --examples $(WHEEL_EXAMPLES)

# Of Debian or Ubuntu, as root or with sudo.
wheel-packages: ## install what make wheels needs of the system
	sudo=$$(command -v sudo); $$sudo apt-get update -qq && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    g++ g++-aarch64-linux-gnu

ci: ## what CI runs: every check and test
	bash .ci/run

$(WHEELS_STAMP): requirements/wheels.txt $(CONSTRAINTS) | tools
	$(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_VENV)/bin/pip --disable-pip-version-check install -q -c $(CONSTRAINTS) \
	  -r requirements/wheels.txt
	@touch $@
