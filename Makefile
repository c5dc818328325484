# The two commands are make demo and make test; both get what is missing, without root.

PREFIX ?= $(HOME)/.local

.PHONY: build demo test check docs gauntlet test-gpu bless install release clean

build:
	@scripts/tools/build.sh

# make demo ARGS="--backend sim --repeat 5"
demo:
	@scripts/tools/demo.sh $(ARGS)

# Ten minutes: all that guards behaviour, once.
test:
	@scripts/ci/test.sh

# Half an hour more: other builds, machines, sanitizers, models.
check:
	@scripts/ci/check.sh

# The documentation site, into target/site.
docs:
	@scripts/tools/docs.sh

# Everything in full: make gauntlet ARGS="--only NAME"
gauntlet:
	@scripts/ci/gauntlet.sh $(ARGS)

test-gpu:
	@scripts/gpu/test_gpu.sh

# Writes include/tcuda.h, tcuda_cdef.h and api.json anew from src/ffi.
bless:
	TCUDA_BLESS=1 cargo test --locked --test header

install:
	@scripts/tools/install.sh "$(PREFIX)"

# Tarballs for x86-64 and aarch64, glibc 2.17, into target/release-VERSION.
release:
	@scripts/tools/release.sh

clean:
	rm -rf build target
