"""The convolutions under the signatures of other libraries. Imports torch alone."""
