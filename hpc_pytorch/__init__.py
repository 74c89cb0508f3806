"""What ./eb, the easyblocks and the hooks share: systems as data, the launcher, packages of the operating system."""
import os

HERE = os.path.dirname(os.path.realpath(__file__))


def collection_path(name):
    """Where a directory of the collection is: beside this package in a checkout, inside it when installed with pip."""
    places = [os.path.join(top, name) for top in (os.path.dirname(HERE), HERE)]
    return next((place for place in places if os.path.isdir(place)), places[0])
