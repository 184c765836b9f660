"""Does a call stack keep more and more? From mergeable sums to a claim.

Flows in: `Sums`, the small tables that a fold keeps of every site of one process (sums.py says what each column
means, how two of them merge and how a long run is thinned). Flows out: a claim per site (claims.py).
"""
