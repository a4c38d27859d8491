"""What a server makes of uploads that it does not trust."""
