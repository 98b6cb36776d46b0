"""Commission fresh servers: stages that prove a host, its certificate, or the part to send back."""
