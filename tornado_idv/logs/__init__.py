"""Log lines: handlers, filters, folding and the writer."""
