"""Work that goes host by host and can be resumed."""
