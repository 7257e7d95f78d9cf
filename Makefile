# Thin targets over tools/; each tool also runs by itself where make is not installed yet.
.PHONY: demo test build setup setup-cuda check docs install bench mutations clean
demo:
	@tools/demo.sh
test:
	@tools/test.sh
build:
	@tools/build.sh release
setup:
	@tools/setup.sh build test
setup-cuda:
	@tools/setup.sh build cuda
check:
	@tools/check.sh
docs:
	@tools/docs.sh
install:
	@tools/install.sh "$(PREFIX)" $(if $(BUNDLE),--bundle)
bench:
	@tools/setup.sh build test bench
	@tools/build.sh release
	@set -e; for question in bench/*.sh; do $$question; done
mutations:
	@tools/setup.sh build test
	@python3 tools/mutations.py
clean:
	rm -rf build
