# Verbs for people. The build itself is meson's; see tools/ for what each verb does.

help:
	@echo 'make build   install what is missing, build into build/'
	@echo 'make run     a sample API with hapax serve before it, and lines to try, until Ctrl-C'
	@echo 'make run-consume  a handler of messages with hapax consume before it; brings RabbitMQ along'
	@echo 'make run-saga  three services, a refund and messages between them; brings PostgreSQL and RabbitMQ along'
	@echo 'make test    build, then run every test'
	@echo 'make check   in seconds, before each commit: format, layers, words, links and what linters see'
	@echo 'make deb    build the Debian packages into build-deb/'
	@echo 'make image   an image for containers of these packages, into build-image/'
	@echo 'make sdk     the packages of the SDKs, each installed into a clean environment'
	@echo 'make docs    the documentation as a site, into build-docs/'
	@echo 'make soak    the long tests: hours of what make test does in minutes'
	@echo 'make prove   the same in MINUTES=60; ends with a table'
	@echo 'make clean   remove what was built'

build:
	@tools/install build
	@tools/build build
	@echo 'built: build/hapax'

run: build
	@tools/run $(PORT)

run-consume: build
	@tools/install consume
	@tools/run-consume

run-saga: build
	@tools/install saga
	@tools/run-saga $(ARGS)

test:
	@tools/test

check:
	@tools/install check
	@tools/check

deb:
	@tools/install build deb
	@tools/deb

image: deb
	@tools/install image
	@tools/image

all-servers: build
	@tools/install test ci deb image
	@tools/npm/fetch && tools/kafka/fetch

soak: all-servers
	@tools/soak

prove: all-servers
	@tools/soak --minutes $(or $(MINUTES),60)

sdk:
	@tools/install sdk
	@tools/sdk

docs:
	@tools/install docs
	@tools/docs

clean:
	rm -rf build build-ci build-deb build-image build-docs

.PHONY: help all-servers build run run-consume run-saga docs test check deb image soak prove sdk clean
