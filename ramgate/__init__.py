"""ramgate: builds that never run out of memory."""

# that of the collection, see CHANGELOG.rst
VERSION = '2.0.0'
