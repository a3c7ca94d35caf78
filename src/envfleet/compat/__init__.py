"""Other packages' names for envfleet: for code that imports them and shall not be changed.

Nothing is put in place by an import. Each module has an install(); `python -m envfleet.compat script.py`
installs them all and runs the script.
"""
