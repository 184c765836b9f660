"""Programs of which it is known whether they leak, and how often the judge is right about them."""
