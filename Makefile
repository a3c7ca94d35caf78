# Start with make demo or make test. The other targets are for developers; make help lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(shell find native -name '*.cc' -o -name '*.h') CMakeLists.txt pyproject.toml
CPP := $(shell find native benchmarks tests examples -name '*.cc' -o -name '*.h')
BENCH := .venv-bench
GAMES := $(wildcard tests/*/test_vizdoom*.py)
RLLIB_PIP := .venv-rllib/bin/python -m pip --disable-pip-version-check --quiet
GYM_PIP := .venv-gym/bin/python -m pip --disable-pip-version-check --quiet
FREE_PIP := .venv-freethreaded/bin/python -m pip --disable-pip-version-check --quiet
SANITIZE_PIP := .venv-sanitize/bin/python -m pip --disable-pip-version-check --quiet
TSAN_PIP := .venv-tsan/bin/python -m pip --disable-pip-version-check --quiet
TEST_TIMEOUT ?= 120
BENCH_PIP := $(BENCH)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-freethreaded test-rllib test-gym soak build lint format bench clean
.PHONY: check foreign sanitize sanitize-python sanitize-freethreaded sanitize-cuda

help:
	@echo "make demo      build, then run 1024 CartPoles for a few seconds"
	@echo "make test      build, then run all tests"
	@echo "make build     rebuild the native module; only what changed"
	@echo "make lint      run ruff, mypy and clang-format"
	@echo "make format    format the code with ruff and clang-format"
	@echo "make bench     measure envfleet against its peers (installs them in .venv-bench)"
	@echo "make soak      run the long tests: random kills, a thousand pools"
	@echo "make foreign   run other projects' test suites on envfleet's classes; SUITES=\"sb3 ale\" selects some"
	@echo "make test-freethreaded PYTHON=python3.13t   run the conformance tests without the GIL"
	@echo "make test-rllib  test the RLlib API with the older Gymnasium that ray[rllib] requires"
	@echo "make test-gym  run scripts written for predecessors with gym 0.26.2"
	@echo "make sanitize  run the C++ tests under ThreadSanitizer and Address+UBSanitizer"
	@echo "make sanitize-python  test the Python module under Address+UBSanitizer, with corrupted states"
	@echo "make sanitize-freethreaded PYTHON_TSAN=python3.13t  the same under ThreadSanitizer, without the GIL"
	@echo "make sanitize-cuda  copy batches to a GPU under compute-sanitizer"
	@echo "make check     run all of these and print a table; ONLY=sanitize,soak selects some"

demo: $(VENV)/.built
	$(PIP) install "rich>=13" "matplotlib>=3.8" "imageio>=2.31" "imageio-ffmpeg>=0.5"
	$(BIN)/envfleet run CartPole-v1 --num-envs 1024 --seconds 5

# Two at a time: most tests wait for processes that they start. The ViZDoom tests inspect the machine's shared
# memory, so they run first and alone.
test: $(VENV)/.tests
	$(BIN)/python -m pytest $(GAMES)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(GAMES:%=--ignore=%)

soak: $(VENV)/.tests
	$(BIN)/python -m pytest -m soak --timeout 3600

# The test suites come from sdists, archives or checkouts; see docs/compatibility.md.
foreign: $(VENV)/.tests
	$(BIN)/python tools/foreign_suites.py $(SUITES)

# In its own environment, without the rendering extras, which have no wheels there.
test-freethreaded:
	$(PYTHON) -c "import sys; sys.exit('expected a free-threaded Python, got one with the GIL') if sys._is_gil_enabled() else None"
	$(PYTHON) -m venv .venv-freethreaded
	# The newest numpy and hypothesis have no wheels for free-threaded 3.13; building them is slow and needs Rust.
	$(FREE_PIP) install --only-binary numpy,hypothesis "numpy>=2.1" pytest pytest-timeout hypothesis psutil
	$(FREE_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "cmake>=3.25" ninja
	$(FREE_PIP) install --no-build-isolation -C build-dir=build/freethreaded .
	.venv-freethreaded/bin/python -m pytest tests/conformance tests/native \
	  $(addprefix tests/faults/,test_python_env_faults.py test_odd_python_envs.py test_python_pool_misuse.py)

# In its own environment: ray[rllib] pins an older Gymnasium than the other tests need.
test-rllib:
	$(PYTHON) -m venv .venv-rllib
	$(RLLIB_PIP) install --upgrade "pip>=25.1"
	$(RLLIB_PIP) install "torch==2.13.0" "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	$(RLLIB_PIP) install --no-build-isolation -C build-dir=build/rllib ".[rllib]" pytest pytest-timeout psutil
	.venv-rllib/bin/python -m pytest tests/apis/test_rllib.py

# In its own environment: if gym were installed for all tests, none would use envfleet's stand-in for it.
test-gym:
	$(PYTHON) -m venv .venv-gym
	$(GYM_PIP) install --upgrade "pip>=25.1"
	$(GYM_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	$(GYM_PIP) install --no-build-isolation -C build-dir=build/gym ".[ray,render]" "gym==0.26.2" pytest pytest-timeout psutil
	.venv-gym/bin/python -m pytest -m "soak or not soak" tests/compat/test_scripts.py

build: $(VENV)/.built

# The build tools are installed into the venv. With build isolation, pip would install them into a new temporary
# folder each time, which invalidates CMake's cache and makes rebuilds slow.
$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	$(PIP) install "mujoco-core==4.0.0; python_version >= '3.11'"
	touch $@

$(VENV)/.built: $(VENV)/.tools $(NATIVE)
	$(PIP) install --no-build-isolation --editable .
	touch $@

$(VENV)/.tests: $(VENV)/.built
	$(PIP) install --group test
	touch $@

$(VENV)/.lint: $(VENV)/.tests
	$(PIP) install --group lint
	touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# Checks that this machine cannot run are skipped with a reason. PYTHON_FREETHREADED and PYTHON_TSAN name the
# interpreters for the checks without the GIL.
check:
	$(PYTHON) tools/check.py $(if $(ONLY),--only $(ONLY))

# The timeout catches lost wake-ups, which show as hangs. ENVFLEET_TEST_SCALE makes the random tests longer.
sanitize: $(VENV)/.tools
	for kind in thread address,undefined; do \
	  folder=build/sanitize-$${kind%%,*}; \
	  $(BIN)/cmake -S . -B $$folder -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	    -DPython_EXECUTABLE=$(abspath $(BIN))/python -DENVFLEET_SANITIZE=$$kind >/dev/null && \
	  $(BIN)/cmake --build $$folder && \
	  $(BIN)/ctest --test-dir $$folder --output-on-failure --timeout $(TEST_TIMEOUT) || exit 1; \
	done

.venv-sanitize/.tools:
	$(PYTHON) -m venv .venv-sanitize
	$(SANITIZE_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	$(SANITIZE_PIP) install "gymnasium[mujoco]" cloudpickle dm-env pytest pytest-timeout hypothesis psutil
	touch $@

# With gcc, because its runtime can be preloaded into the interpreter; libstdc++ must be preloaded too, or the runtime
# cannot intercept exceptions. Leak detection is off because of CPython's own leaks. Plug-ins that tests compile are
# instrumented too. pytest must not capture file descriptors: a report that ends the process would be lost.
SANITIZED := -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1
sanitize-python: .venv-sanitize/.tools
	CXX=g++ $(SANITIZE_PIP) install --no-build-isolation --no-deps -C build-dir=build/sanitize-python \
	  -C cmake.build-type=RelWithDebInfo -C cmake.define.ENVFLEET_SANITIZE=address,undefined .
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc CXX=g++ CXXFLAGS="-fsanitize=address,undefined $(SANITIZED)" \
	  .venv-sanitize/bin/python -m pytest --capture=sys --timeout 1800 -m "not soak or soak" \
	    tests/fuzz/test_states.py tests/conformance tests/test_bad_input.py tests/test_rng.py tests/native/test_kernels.py

# The Python module without the GIL under ThreadSanitizer, which the interpreter must be built with too. The run
# continues after a report and exits with status 66. Reports are off while packages are installed.
QUIET := report_bugs=0:exitcode=0
sanitize-freethreaded:
ifeq ($(PYTHON_TSAN),)
	@echo "skipped: needs a free-threaded Python built with --with-thread-sanitizer; set PYTHON_TSAN to one"
else
	TSAN_OPTIONS=$(QUIET) $(PYTHON_TSAN) -m venv .venv-tsan
	TSAN_OPTIONS=$(QUIET) $(TSAN_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "cmake>=3.25" ninja
	TSAN_OPTIONS=$(QUIET) $(TSAN_PIP) install --only-binary numpy,hypothesis "numpy>=2.1" hypothesis \
	  gymnasium cloudpickle pytest pytest-timeout psutil
	TSAN_OPTIONS=$(QUIET) CXX=g++ $(TSAN_PIP) install --no-build-isolation --no-deps -C build-dir=build/sanitize-tsan \
	  -C cmake.build-type=RelWithDebInfo -C cmake.define.ENVFLEET_SANITIZE=thread .
	TSAN_OPTIONS="suppressions=$(abspath tools/tsan.txt) exitcode=66" CXX=g++ CXXFLAGS="-fsanitize=thread $(SANITIZED)" \
	  .venv-tsan/bin/python -m pytest -p no:faulthandler --capture=sys --timeout 1800 \
	    tests/conformance tests/fuzz/test_threads_of_one_pool.py -k "not processes"
endif

# On a machine with a GPU: copies to and from the device under NVIDIA's checker of memory accesses.
sanitize-cuda: $(VENV)/.tests
	compute-sanitizer --tool memcheck --error-exitcode 1 \
	  $(BIN)/python tests/support/torch_consumers.py cuda native 200 1

$(BENCH)/.peers:
	$(PYTHON) -m venv $(BENCH)
	$(BENCH_PIP) install --upgrade "pip>=25.1"
	$(BENCH_PIP) install "torch==2.13.0"
	$(BENCH_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja \
		"envpool==1.2.5" "gymnasium[mujoco,box2d]" ale-py vizdoom dm-control minigrid "ray==2.60.0" \
		opencv-python-headless stable-baselines3 "torchrl>=0.14" "matplotlib>=3.8" rich
	touch $@

# Not editable, with its own build folder: a benchmark must not measure a tree that is being edited.
bench: $(BENCH)/.peers
	$(BENCH_PIP) install --no-build-isolation -C build-dir=build/bench .
	$(BENCH)/bin/python benchmarks/compare.py
	$(BENCH)/bin/python benchmarks/compare.py --refresh docs/benchmarks
	$(BENCH)/bin/python benchmarks/plot.py

clean:
	rm -rf build $(VENV) .venv-bench .venv-freethreaded .venv-rllib .venv-gym .venv-sanitize .venv-tsan
