"""Readers of data sets as their authors distribute them, one file for each family of formats."""
