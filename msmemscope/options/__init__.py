"""The options: one declaration each, its grammar, the record they come to. Stdlib only: ranks read them too."""
