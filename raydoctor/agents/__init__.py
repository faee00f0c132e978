"""What agents use: the tools of `raydoctor mcp`, and the skill that describes the command line."""
