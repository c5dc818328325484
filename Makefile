# The two commands are make demo and make test; both get what is missing, without root.

PREFIX ?= $(HOME)/.local

.PHONY: build demo test gauntlet test-gpu bless install clean

build:
	@scripts/build.sh

# make demo ARGS="--backend sim --repeat 5"
demo:
	@scripts/demo.sh $(ARGS)

test:
	@scripts/test.sh

# Everything in full: make gauntlet ARGS="--only NAME"
gauntlet:
	@scripts/gauntlet.sh $(ARGS)

test-gpu:
	@scripts/test_gpu.sh

# Writes include/tcuda.h anew from src/ffi.
bless:
	TCUDA_BLESS=1 cargo test --locked --test header

install:
	@scripts/install.sh "$(PREFIX)"

clean:
	rm -rf build target
