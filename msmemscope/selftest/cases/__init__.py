"""The scripted jobs, a module for each analysis. See case.py for how one is declared."""
