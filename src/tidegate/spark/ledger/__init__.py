"""``LedgerSink``: rows of any streaming query into SQL tables, exactly once per micro-batch."""
