"""Tests, laid out like the packages that they test. `make test` runs those that are neither `slow` nor `gpu`."""
