"""What the numbers of steps mean to an analysis. How they are counted: native/hook/steps.h.

Iteration n of the program, counted from 1, is step n. What comes before the first boundary is recorded as step 0; where
steps are told by their ends (msmemscope.step(), an optimizer) this is the first iteration with all that the program did
before it, and no event carries the number 1.
"""

from __future__ import annotations

FIRST_STEP = 2
"""The first step that counts, as in upstream: what the first iteration allocates is not typical."""
WARM_UP = FIRST_STEP - 1
"""The last step of what is not typical."""
