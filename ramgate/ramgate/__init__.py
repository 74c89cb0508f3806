"""ramgate: builds that stay within the memory."""

# that of the collection, see docs/changelog.rst
VERSION = '2.0.0'
