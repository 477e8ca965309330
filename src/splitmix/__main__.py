"""`python -m splitmix` is the command line too."""

from splitmix.cli import main

main()
