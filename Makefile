# Two commands do everything: `make demo` runs dlio on real data, `make test` runs the tests of all parts.
# `make quick` runs a minute's part of the tests: plans, sources, data sets, the command line; no frameworks, no MPI.
# `make jobs` runs the rest, whole jobs: a real SLURM, MPI, Dask, Ray and Spark, trainers, random kills.
# `make venv` makes just the environment, in .venv, with every extra and the `dlio` command in it.

# `make docs` builds the site of docs/ into site/; a dead link or an unknown name ends it.
# `make mutants` breaks the lines that a change touches, one at a time: a test has to notice each, within 3 minutes.
# `make soak` runs the suite for hours, with 20 times as many kills and random inputs, and breaks all such lines.
# `make bare` runs `make demo quick` on its own minimal Debian, as root. `make wheels` builds what a release consists
# of, into dist/.

# `make coverage` runs all tests under coverage.py, and puts the shares of lines and branches into docs/tested.md.

.PHONY: venv demo test jobs quick quick-tests mutants docs coverage soak bare wheels lint clean

unexport PYTHONDONTWRITEBYTECODE   # hundreds of processes would each compile dlio

venv: .venv/.complete

.venv/.complete: pyproject.toml CMakeLists.txt $(wildcard dlio/native/*.?pp dlio/native/*/*.?pp) tools/setup.sh \
  tests/peers/requirements.txt
	bash tools/setup.sh
	touch $@

demo: .venv/.complete
	.venv/bin/python tools/demo/demo.py

# More processes than two cores, since many a test waits for other processes.
test: .venv/.complete
	.venv/bin/python -m pytest -n 4 --dist worksteal -m "not jobs"

jobs: .venv/.complete
	.venv/bin/python -m pytest -n 4 --dist worksteal -m jobs

docs: .venv/.docs
	.venv/bin/python -m tools.site.chart
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build   # with --quiet, warnings of dead links would not end it

.venv/.docs: .venv/.complete
	.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])' | \
	  xargs .venv/bin/python -m pip --disable-pip-version-check install --quiet
	touch $@

coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: .venv/.complete
	rm -rf build/coverage
	mkdir -p build/coverage
	-.venv/bin/coverage run -m pytest -n 4 --dist worksteal   # what it reaches counts though a test fails
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage json --quiet -o build/coverage.json
	.venv/bin/python -m tools.site.tested build/coverage.json

soak: .venv/.complete
	DLIO_TEST_ROUNDS=20 .venv/bin/python -m pytest -n 2 --dist worksteal -o timeout=3600
	.venv/bin/python -m tools.simulate --schedules 20000 --seed $$(date +%s)
	.venv/bin/python -m tools.chaos --seconds 3600
	.venv/bin/python -m tools.mutants

mutants: .venv/.complete
	.venv/bin/python -m tools.mutants --changed --seconds 170

bare:
	tools/bare_root.sh

wheels:
	python3.11 packaging/wheels.py

QUICK = tests/cluster tests/io tests/dataset tests/cli tests/pack/test_plan.py tests/pack/test_sources.py \
  tests/conformance/test_sources.py tests/test_errors.py tests/test_images.py tests/test_import.py tests/test_urls.py \
  --ignore tests/dataset/test_flipped_bits.py

quick: .venv/.complete
	$(MAKE) --no-print-directory quick-tests PYTHON=.venv/bin/python

quick-tests:   # in any environment: nox has one for each Python
	$(PYTHON) -m pytest -q -n 2 --dist worksteal $(QUICK)

lint: .venv/.complete
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m tools.style
	git ls-files | xargs .venv/bin/codespell
	.venv/bin/clang-format --dry-run --Werror dlio/native/*.?pp dlio/native/*/*.?pp tools/fuzz/*.cpp
	printf '%s\n' dlio/native/*.cpp $(foreach part,augment crc32c jpeg pixels planes png resize,dlio/native/$(part)/*.cpp) | \
	  xargs -P 2 -n 4 .venv/bin/clang-tidy --quiet

clean:
	rm -rf .venv build demo-data dist packaging/sources site
