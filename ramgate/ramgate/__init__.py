"""ramgate: builds that stay within the memory."""

# that of the collection, see CHANGELOG.rst
VERSION = '2.0.0'
