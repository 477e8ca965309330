"""The paper's evidence: every table and figure as an entry that can be run, judged and reported."""
